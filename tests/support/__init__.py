"""What the tests share: real parts to test against, and how to wait for them."""
