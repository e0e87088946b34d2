#!/usr/bin/env bash
# Runs a shell in another guest, with the standard streams of this:
#   elsewhere.sh ADDRESS /bin/sh
# The shell that answers there has one stream for all that it says, so what is said on its error
# stream comes by another shell. What it ends with is lost: a PE tells its launcher how it ended.
set -euo pipefail
exec 3<>"/dev/tcp/$1/7000" 4<>"/dev/tcp/$1/7000" 5<&0
errors=/tmp/elsewhere.$$
echo "mkfifo $errors && exec cat $errors" >&4
echo "until [[ -p $errors ]]; do sleep 0.1; done; exec 2>$errors; rm $errors" >&3
cat <&4 >&2 3>&- 5<&- &
# Who closes the input wants the end.
{ cat <&5 >&3 && kill $$; } 2>/dev/null &
exec cat <&3
