#!/bin/bash
# Runs site.yaml and upgrade.yaml for real on one machine: six hosts as network and mount namespaces,
# joined by a bridge; a stand-in for systemctl. Writes records all the time, counts them at the end.
# Needs root, iproute2, Java, ansible-playbook, a directory of wheels and ZooKeeper's jars:
#   pip wheel . -w /tmp/wheels
#   WHEELS=/tmp/wheels JARS=.../pyspark/jars deploy/ansible/try/run.sh
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
: "${WHEELS:?}" "${JARS:?}"
playbook=${ANSIBLE_PLAYBOOK:-ansible-playbook}
work=$(mktemp -d /tmp/suwi-try.XXXXXX)
bridge=suwi-try0
hosts="zk1 zk2 zk3 broker1 broker2 broker3"

inside() { # HOST COMMAND…
    local host=$1
    shift
    nsenter --net="/run/netns/suwi-$host" --mount="$work/$host/mount" -- "$@"
}

down() {
    for host in $hosts; do
        for pid in $(ip netns pids "suwi-$host" 2>/dev/null); do kill -9 "$pid" 2>/dev/null || true; done
        ip netns del "suwi-$host" 2>/dev/null || true
        umount "$work/$host/mount" 2>/dev/null || true
    done
    ip link del "$bridge" 2>/dev/null || true
    umount "$work" 2>/dev/null || true
    rm -rf "$work"
}
trap down EXIT

chmod 755 "$work"
mount --bind "$work" "$work"
mount --make-private "$work"
ip link add "$bridge" type bridge
ip link set "$bridge" up
number=10
for host in $hosts; do
    mkdir "$work/$host"
    ip netns add "suwi-$host"
    ip link add "veth-$host" type veth peer name eth0 netns "suwi-$host"
    ip link set "veth-$host" master "$bridge" up
    ip -n "suwi-$host" address add "10.249.0.$number/24" dev eth0
    ip -n "suwi-$host" link set eth0 up
    ip -n "suwi-$host" link set lo up
    echo "10.249.0.$number $host" >>"$work/hosts"
    number=$((number + 1))
    touch "$work/$host/mount"
    unshare --mount="$work/$host/mount" true
    cat >"$work/$host/python" <<EOF
#!/bin/bash
exec nsenter --net=/run/netns/suwi-$host --mount=$work/$host/mount env PATH=$here:/usr/sbin:/usr/bin:/sbin:/bin /usr/bin/python3 "\$@"
EOF
    chmod +x "$work/$host/python"
done
for host in $hosts; do # every host has its own /etc, /opt and /var/lib
    inside "$host" bash -c "
        mkdir $work/$host/disk && mount -t tmpfs none $work/$host/disk && chmod 755 $work/$host/disk
        for top in etc opt var/lib; do
            mkdir -p $work/$host/disk/up/\$top $work/$host/disk/work/\$top
            mount -t overlay overlay -o lowerdir=/\$top,upperdir=$work/$host/disk/up/\$top,workdir=$work/$host/disk/work/\$top /\$top
        done
        cat $work/hosts >>/etc/hosts"
done

wheel=$(ls "$WHEELS"/suwi-*.whl)
play() {
    (cd "$here/.." && "$playbook" -i try/inventory.yaml "$@" \
        -e "work=$work" -e "jars=$JARS" -e "wheels=$WHEELS")
}
suwi() { inside broker1 /opt/suwi/current/bin/suwi "$@" --broker broker1:9092,broker2:9092,broker3:9092; }

play site.yaml -e "wheel=$wheel"
echo "--- a second run changes nothing"
play site.yaml -e "wheel=$wheel" | tee "$work/second" | tail -n 8
if grep -E 'changed=[1-9]' "$work/second"; then exit 1; fi

suwi topics create water --partitions 6
(
    number=0
    while [ ! -e "$work/stop" ]; do
        echo $((number += 1))
        sleep 0.01
    done
) | suwi produce water >"$work/produced" &
writer=$!
echo "--- rolling upgrade, with a writer"
new=$work/suwi-0.1.0-1-py3-none-any.whl # the same code under another name
cp "$wheel" "$new"
play upgrade.yaml -e "wheel=$new"
touch "$work/stop"
wait "$writer"
cat "$work/produced"
suwi consume water --from-beginning --no-follow | sort -n >"$work/consumed"
read=$(wc -l <"$work/consumed") different=$(sort -nu "$work/consumed" | wc -l) last=$(tail -1 "$work/consumed")
echo "$read records read, $different of them different, the last is $last"
[ "$read" = "$last" ] && [ "$different" = "$last" ] || exit 1
suwi status --brokers 3
for host in broker1 broker2 broker3; do inside "$host" readlink /opt/suwi/current; done
inside broker1 curl -sf http://broker2:9100/metrics | grep -c ^suwi_
for unit in zk1:zookeeper broker1:suwi; do
    told=$(inside "${unit%:*}" systemd-analyze verify "/etc/systemd/system/${unit#*:}.service" 2>&1)
    # It only warns of keys that it does not know.
    if grep "${unit#*:}.service" <<<"$told"; then exit 1; fi
done
echo "units verified"
