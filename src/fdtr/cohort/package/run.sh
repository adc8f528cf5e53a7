#!/bin/sh
# This site's part of the study. Fill in config.json first. Nothing is sent.
set -eu
cd "$(dirname "$0")"
if ! command -v fdtr > /dev/null; then
    echo "fdtr is not installed here. Run: pip install 'fdtr[extract]'" >&2
    exit 1
fi
exec fdtr site run . "$@"
