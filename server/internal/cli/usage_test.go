package cli_test

import (
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/server/internal/cli"
)

// TestWrongUsageIsFoundBeforeTheBackend: each of these lines is wrong on every backend, so none of
// them asks one. Nothing listens at the address.
func TestWrongUsageIsFoundBeforeTheBackend(t *testing.T) {
	t.Parallel()
	for _, line := range []string{
		"saga shards more",
		"saga shards --set 0 --reason x",
		"saga shards --set 4097 --reason x",
		"saga ls --stalled",
		"saga ls --table other",
		"saga ls --choreographed --state LOST",
		"saga retry order/42 '' --reason x",
		"saga skip order/42 '' --reason x",
		"saga retry order/42 --input {} --reason x",
		"tcc retry trip/1 '' --reason x",
		"coordinate --participant postgres://u:secret@n/bank?sslmode=disable",
		"coordinate --max-connections -1",
		"coordinate --max-connections-per-address -1",
		"coordinate --ttl 0",
		"coordinate --keep 0",
		"dlq sagas --limit 0",
		"doctor --ttl -1s",

		"guard rebase x --to 0 --reason x --by ''",
		"locks release x --reason x --by '' --yes",
		"tokens repair --reason x --by ''",
		"outbox slices --set 3 --reason x --by ''",
		"outbox replay --reason x --by ''",
		"dlq discard m1 --reason x --by ''",
		"queue replay orders 1 --reason x --by ''",
		"saga abort order/42 --reason x --by ''",
		"saga settle order/42 pay --done --reason x --by ''",
		"saga shards --set 3 --reason x --by ''",
		"saga forget --before 720h --reason x --by ''",
	} {
		args := []string{"--backend", "postgres://127.0.0.1:1/shop", "--timeout", "1s"}
		for _, word := range strings.Fields(line) {
			args = append(args, strings.Trim(word, "'"))
		}
		code, out, said := cli.RunWithin(t, args...)
		if code != 64 || out != "" || strings.Contains(said, "secret") {
			t.Errorf("%s: exit code %d, %s%s", line, code, out, said)
		}
	}
}

// TestWrongValuesAreExplained: an error of a flag's value names what the flag takes, in no words of Go.
func TestWrongValuesAreExplained(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"lock x --ttl 3 -- true":                    "--ttl 3 is not a duration, such as 10s or 1h30m; interlock lock --help explains the flags",
		"doctor --watch=-":                          "--watch - is not a duration, such as 10s or 1h30m; interlock doctor --help explains the flags",
		"locks ls --limit many":                     "--limit many is not a whole number; interlock locks ls --help explains the flags",
		"limit x --cost 0.5":                        "--cost 0.5 is not a whole number; interlock limit --help explains the flags",
		"locks ls --all=perhaps":                    "--all perhaps is not true or false; interlock locks ls --help explains the flags",
		"coordinate --ttl 1ms":                      "--ttl 1ms is impossible: etcd grants leases of 1s to 24h0m0s, in whole seconds",
		"dev --backend redis://h":                   "interlock dev runs its own etcd; leave out --backend",
		"queue ls --backend nats://h:4222":          "no command shows queues of nats: docs/how-to/nats.md explains",
		"dlq queue orders --backend kafka://h:9092": "no command shows queues of kafka: docs/how-to/kafka.md explains",
	} {
		code, out, said := cli.RunWithin(t, strings.Fields(line)...)
		if code != 64 || out != "" || !strings.HasPrefix(said, "interlock: "+want) || strings.Contains(said, "strconv") {
			t.Errorf("%s: exit code %d, %s%s", line, code, out, said)
		}
	}
}
