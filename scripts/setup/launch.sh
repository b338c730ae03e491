# Sourced by the programs in bin/, with `root` set to the checkout. A shell and not Node, because starting a machine's older
# Node only to have it start the newer one takes longer than most commands do.

# launch MODULE ARGS...: becomes the Node of the cache, running a module of the checkout; the machine's own where there is none.
launch() {
  module=$1
  shift
  cache=${AENV_CACHE_DIR:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache/aenv}
  # Stripping types and compiling are done once. The folder is the user's own: what lies in it is run.
  export NODE_COMPILE_CACHE="$cache/compile"
  read -r version <"$root/.node-version"
  for node in "$cache/node/$version"/node_modules/node-linux-*/bin/node; do
    [ ! -x "$node" ] || exec "$node" "$root/$module" "$@"
  done
  ! command -v node >/dev/null || exec node "$root/scripts/setup/program.js" "$root/$module" "$@"
  echo "aenv needs Node ${version%%.*} or newer and there is none: install a Node from 20 up and run \`npm run up\` in $root once" >&2
  exit 1
}
