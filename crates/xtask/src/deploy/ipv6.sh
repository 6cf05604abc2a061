# Runs a rendered configuration where no address is IPv4: in a network namespace of its own.
# $1: a folder with pointsman.toml, $2: the program. The master is mymaster, its sentinel at [::1]:26379.
set -eu
cd "$1"
ip link set lo up
ip -4 address flush dev lo
test -z "$(ip -4 -oneline address)"
printf 'port 26379\nbind ::1\nsentinel monitor mymaster ::1 6390 1\n' > sentinel.conf
redis-server --port 6390 --bind ::1 --save '' > redis.log 2>&1 &
redis=$!
redis-sentinel sentinel.conf > sentinel.log 2>&1 &
sentinel=$!
"$2" run --config pointsman.toml > pointsman.log 2>&1 &
proxy=$!
trap 'kill $redis $sentinel $proxy 2> kill.log' EXIT
attempt=0
until "$2" status --ready --admin '[::1]:8888' 2> status.log; do
  attempt=$((attempt + 1))
  if [ "$attempt" -ge 300 ] || ! kill -0 "$proxy"; then
    cat status.log pointsman.log
    exit 1
  fi
  sleep 0.1
done
redis-cli -h ::1 -p 6379 PING
