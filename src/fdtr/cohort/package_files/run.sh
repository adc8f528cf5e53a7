#!/bin/sh
# This site's part of the study. Fill in config.json first. Nothing is sent.
set -eu
cd "$(dirname "$0")"
if ! command -v fdtr > /dev/null; then
    echo "fdtr is not installed here. README.md says how to install it from the file that the study's hub gave you." >&2
    exit 1
fi
exec fdtr site run . "$@"
