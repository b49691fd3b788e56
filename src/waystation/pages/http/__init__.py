"""What HTTP says about caches, as functions of requests and responses: no store, no clock of its
own, no sockets."""
