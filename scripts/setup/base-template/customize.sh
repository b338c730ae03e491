#!/bin/sh
# Hook of mmdebstrap, run once the packages are in. $1: the root of the template.
# AENV_BASE_FILES, AENV_BASE_NODE (a folder with npm's packages node and npm), AENV_BASE_ID come from scripts/setup/base.ts.
set -eu
root=$1

chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash user
cp -RT --no-preserve=all "$AENV_BASE_FILES" "$root"
chroot "$root" chown -R user:user /home/user
# Debian's runs a program when a login shell exits.
rm -f "$root/home/user/.bash_logout" "$root/etc/skel/.bash_logout"

printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"

# Node and npm from npm's own packages: Debian's npm alone would bring several hundred packages.
install -m 0755 "$AENV_BASE_NODE/bin/node" "$root/usr/local/bin/node"
mkdir -p "$root/usr/local/lib/node_modules"
cp -R --no-preserve=ownership "$AENV_BASE_NODE/npm" "$root/usr/local/lib/node_modules/npm"
rm -rf "$root/usr/local/lib/node_modules/npm/docs" "$root/usr/local/lib/node_modules/npm/man"
ln -s node "$root/usr/local/bin/nodejs"
ln -s ../lib/node_modules/npm/bin/npm-cli.js "$root/usr/local/bin/npm"
ln -s ../lib/node_modules/npm/bin/npx-cli.js "$root/usr/local/bin/npx"
ln -s python3 "$root/usr/bin/python"
# `pip install` works as people expect of a machine that is theirs alone.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

mkdir -p "$root/code"
chroot "$root" chown user:user /code
chmod 0777 "$root/code"
# Global installs by pip and npm need no sudo (which asks no password anyway).
find "$root/usr/local" -type d -exec chmod 0777 {} +
printf 'TEMPLATE_ID=base\nBUILD_ID=%s\n' "$AENV_BASE_ID" >"$root/.e2b"

printf 'nameserver 8.8.8.8\nnameserver 1.1.1.1\n' >"$root/etc/resolv.conf"
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
printf 'localhost\n' >"$root/etc/hostname"
printf 'LANG=C.UTF-8\n' >"$root/etc/default/locale"
: >"$root/etc/machine-id"
if [ -e "$root/etc/fuse.conf" ]; then
  sed -i 's/^#user_allow_other/user_allow_other/' "$root/etc/fuse.conf"
fi

# What building left behind. The host's apt settings were only for this.
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
find "$root/var/log" -type f -delete
