#!/usr/bin/env bash
# The README's picture: the top of a real report. Needs chromium-headless-shell (Debian) and, for its size, Pillow.
#   docs/picture.sh PAGE        for example the page that `make demo` ends with; writes docs/report.png
set -euo pipefail
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
page=$(realpath "${1:?expected the HTML page of a report}")
chromium-headless-shell --no-sandbox --disable-gpu --hide-scrollbars --window-size=1140,1400 \
    --screenshot="$folder/report.png" "file://$page" 2>/dev/null
"$folder/../.venv/bin/python" - "$folder/report.png" <<'PYTHON'
import sys
from PIL import Image
Image.open(sys.argv[1]).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(sys.argv[1], optimize=True)
PYTHON
