# Read by login shells after /etc/profile; starts no process.
if [ -n "${BASH_VERSION-}" ] && [ -r "$HOME/.bashrc" ]; then
  . "$HOME/.bashrc"
fi
