#!/bin/sh
# Process 1 of the nested machine: what an init would set up, then the tests, then the end. Its output goes over a virtio port,
# because an emulated serial line is slow; the last line there says how the tests ended.
exec >/dev/"$(ls /sys/class/virtio-ports)" 2>&1 </dev/null

mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /dev/pts /dev/shm /run/netns
mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
  echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control
done
# A processor that has just been given up is not waited for: there is only one, and others want it.
echo 0 >/sys/module/kvm/parameters/halt_poll_ns
ip link set lo up
hostname nested
mkdir -p /data/tmp

export PATH=/opt/node/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root TMPDIR=/data/tmp LANG=C.UTF-8
cd /checkout
# What this run is about: its environment, then its command. The kernel hands on what it is told and does not know itself.
. "./nested-commands/$nested_command"
echo "NESTED-EXIT $?"
echo o >/proc/sysrq-trigger
sleep 60
