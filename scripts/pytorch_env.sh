# Sourced by the scripts that need PyTorch: sets `python` to one that has it, installing it under target/ the first time.
venv=target/pytorch
if ! "$venv/bin/python" -c 'import torch, safetensors' 2>/dev/null; then
  echo "installing torch into $venv (several hundred megabytes) …" >&2
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet torch numpy safetensors
fi
python=$venv/bin/python
