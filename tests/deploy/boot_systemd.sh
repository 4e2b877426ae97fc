#!/bin/bash
# Boots this host's systemd in separate namespaces, over a root whose changes are discarded, and runs a script there.
#   unshare -m -p -u -i -C --fork --kill-child boot_systemd.sh FOLDER      FOLDER: contains `inside.sh` and `files/`, which become /files
# The script's output goes to FOLDER/log. Needs root and overlay file systems.
set -euo pipefail
folder=$1
mount --make-rprivate /
mount -t tmpfs tmpfs "$folder/mnt"
mkdir "$folder"/mnt/{upper,work,root}
root=$folder/mnt/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/mnt/upper,workdir=$folder/mnt/work" "$root"
for place in tmp run var/log var/tmp; do mount -t tmpfs tmpfs "$root/$place"; done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -o remount,ro,bind "$root/sys"
mount -t tmpfs tmpfs "$root/dev"
for node in null zero full random urandom tty; do cp -a "/dev/$node" "$root/dev/"; done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"

# Disables units that would affect the host outside of the namespaces.
units=$root/etc/systemd/system
mkdir -p "$units/inside.target.wants"
for unit in systemd-{udevd,udev-trigger,timesyncd,sysctl,modules-load,binfmt,remount-fs,random-seed,resolved,networkd}.service \
  networking.service kmod-static-nodes.service proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount \
  sys-kernel-{debug,tracing,config}.mount sys-fs-fuse-connections.mount getty.target; do
  ln -sf /dev/null "$units/$unit"
done
printf '[Unit]\nRequires=basic.target\nAfter=basic.target\n' > "$units/inside.target"
printf '[Unit]\nAfter=basic.target\n[Service]\nType=oneshot\nExecStart=/bin/bash /outside/inside.sh\nStandardOutput=append:/outside/log\nStandardError=inherit\n' > "$units/inside.service"
ln -s ../inside.service "$units/inside.target.wants/"
mkdir "$root/outside"
mount --bind "$folder" "$root/outside"
cp -r "$folder/files" "$root/files"
cd "$root"
mkdir old-root
pivot_root . old-root
umount -l /old-root
exec env -i container=docker PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=inside.target --log-target=console --show-status=no < /dev/null
