#!/bin/sh
# The last of making the root file system of the template code-interpreter. $1: the root; $2: processes to use.
# Run by scripts/setup/code-interpreter.ts when the packages are in.
set -eu
root=$1
packages="/usr/local/lib/python3.11/dist-packages /opt/code-interpreter /usr/lib/python3/dist-packages/aenv_display.py"

# Their programs name the Python that installed them, and their tests are half of some packages.
for dir in usr/local/lib/python3.11/dist-packages opt/code-interpreter/lib; do
  rm -rf "$root/$dir/bin" "$root/$dir/share" "$root/$dir/.lock"
  find "$root/$dir" -depth -type d -name tests -exec rm -rf {} +
done
# tslab looks for the types of Node below its own folder, where a global install would have them.
ln -s .. "$root/opt/code-interpreter/node_modules/tslab/node_modules"
# In the image once, for all sandboxes, and not anew in each.
chroot "$root" sh -c 'find '"$packages"' -name "*.py" -print0 | xargs -0 -P '"$2"' -n 300 python3 -m compileall -q'
# fontconfig is not there; matplotlib would look for fonts at the first plot of every sandbox.
chroot "$root" env HOME=/root MPLBACKEND=agg python3 -c 'import matplotlib.font_manager'
find "$root/usr/local" -type d -exec chmod 0777 {} +
sed -i 's/^TEMPLATE_ID=.*/TEMPLATE_ID=code-interpreter-v1/' "$root/.e2b"
