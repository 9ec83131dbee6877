package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/flow/limit"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestLimit runs commands under limits, and lists, shows and resets the limits.
func TestLimit(t *testing.T) {
	t.Parallel()
	program(t)
	t.Run("redis", func(t *testing.T) { limits(t, backends["redis"](t)) })
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		db := open(t)
		run(t, 78, "limit", "k", "--rate", "1/s", "--backend", shopURL(db))
		db.Do(t, limit.Table{}.Create)
		limits(t, shopURL(db))
	}, databases.Pgx, databases.Maria)
}

func limits(t *testing.T, url string) {
	on := func(code int, args ...string) (string, string) {
		t.Helper()
		for i, a := range args {
			if a == "--" {
				return run(t, code, append(append(append([]string{}, args[:i]...), "--backend", url), args[i:]...)...)
			}
		}
		return run(t, code, append(args, "--backend", url)...)
	}
	on(0, "limits", "ls", "--limit", "9223372036854775807")
	// A command keeps its exit code, and is not started if refused.
	if out, _ := on(3, "limit", "mail", "--rate", "2/h", "--", "sh", "-c", "echo sent $1; exit 3", "sh", "x"); out != "sent x\n" {
		t.Errorf("the command printed %q", out)
	}
	on(0, "limit", "mail", "--rate", "2/h")
	if out, told := on(75, "limit", "mail", "--rate", "2/h", "--", "echo", "sent"); out != "" || !strings.Contains(told, "retry in 29m") {
		t.Errorf("%q, %q", out, told)
	}
	if _, told := on(75, "limit", "mail", "--rate", "2/h", "--wait=10m", "--", "echo", "sent"); !strings.Contains(told, "retry in 29m") {
		t.Errorf("%q", told) // a wait that would end too late is not started
	}
	var d struct {
		Allowed            bool
		Granted, Remaining int64
		Retry              int64 `json:"retry_after_ms"`
		Reset              int64 `json:"reset_after_ms"`
	}
	decode := func(text string, into any) {
		t.Helper()
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	out, _ := on(75, "limit", "mail", "--rate", "2/h", "-o", "json")
	if decode(out, &d); d.Allowed || d.Granted != 0 || d.Retry < time.Minute.Milliseconds() || d.Reset < d.Retry {
		t.Errorf("%+v", d)
	}
	out, _ = on(0, "limit", "burst", "--rate", "1/h", "--burst", "5", "--cost", "3", "-o", "json")
	if decode(out, &d); !d.Allowed || d.Granted != 3 || d.Remaining != 2 {
		t.Errorf("%+v", d)
	}
	for range 3 {
		on(0, "limit", "quick", "--rate", "20/s", "--burst", "1", "--wait", "--", "true")
	}
	on(0, "limit", "quick", "--rate", "20/s", "--burst", "1", "--wait=1m", "--", "true")

	on(64, "limit", "month", "--rate", "10001/720h") // cannot be counted exactly without a smaller burst
	on(0, "limit", "month", "--rate", "10001/720h", "--burst", "100")
	on(0, "limit", "quota", "--rate", "10001/720h", "--algorithm", "fixed-window")

	// Used units are listed, shown and reset.
	on(0, "limit", "mail", "--rate", "9/h", "--prefix", "other/")
	var all []struct {
		Key, Algorithm string
		Used           int64
		At             time.Time
	}
	out, _ = on(0, "limits", "ls", "mail", "-o", "json")
	if decode(out, &all); len(all) != 1 || all[0].Key != "mail" || all[0].Algorithm != "gcra" || all[0].Used != 2 || time.Since(all[0].At).Abs() > time.Hour {
		t.Errorf("%+v", all)
	}
	out, _ = on(0, "limits", "ls", "--prefix", "other/", "-o", "json")
	if decode(out, &all); len(all) != 1 || all[0].Key != "mail" || all[0].Used != 1 {
		t.Errorf("%+v", all)
	}
	if _, told := on(0, "limits", "ls", "none"); told != "interlock: there are no limits with used units\n" {
		t.Errorf("%q", told)
	}
	if out, _ := on(0, "limits", "show", "mail", "--rate", "2/h"); !strings.HasPrefix(out, "remaining: 0 of 2, reset in 59m") {
		t.Errorf("%q", out)
	}
	if out, _ := on(0, "limits", "show", "none"); out != "nothing is used\n" {
		t.Errorf("%q", out)
	}
	if out, _ := on(0, "limits", "reset", "mail"); out != "reset: mail\n" {
		t.Errorf("%q", out)
	}
	if out, _ := on(0, "limits", "reset", "mail"); out != "nothing was used\n" {
		t.Errorf("%q", out)
	}
	on(0, "limit", "mail", "--rate", "2/h", "--cost", "2")
}

// TestLimitOnReplica: the error has the reason in plain words, and not the script in which Redis refused.
func TestLimitOnReplica(t *testing.T) {
	t.Parallel()
	replica := testbed.Replica(t, testbed.Redis(t))
	var said string
	testbed.Eventually(t, "the replica is ready", time.Minute, func() bool {
		_, said = run(t, 69, "limit", "k", "--rate", "1/s", "--backend", "redis://"+replica.Addr())
		return !strings.Contains(said, "LOADING") && !strings.Contains(said, "MASTERDOWN")
	})
	if !strings.HasSuffix(said, ` answers, but refuses for now, because it is a replica; name the master: redis: limit "k": READONLY You can't write against a read only replica.`+"\n") {
		t.Error(said)
	}
}

// TestUsage requires that invalid calls fail before any request, with an error of one line.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"limit"}, {"limit", "k"}, {"limit", "k", "--rate", "x"}, {"limit", "k", "--rate", "0/s"}, {"limit", "k", "--rate", "1/parsec"},
		{"limit", "k", "--rate", "1/s", "--cost", "2"}, {"limit", "k", "--rate", "1/s", "--cost", "-1"}, {"limit", "k", "--rate", "1/s", "--wait", "3s"},
		{"limit", "k", "--rate", "1/s", "--wait=-3s"}, {"limit", "k", "--rate", "1/s", "--algorithm", "luck"}, {"limit", "", "--rate", "1/s"},
		{"limit", "k", "--rate", "1/s", "--algorithm", "sliding-log", "--burst", "2"}, {"limits", "ls", "a", "b"}, {"limits", "ls", "--limit", "0"}, {"limits", "show"}, {"limits", "show", "k", "--burst", "3"}, {"limits", "reset"}, {"lock", "k"}, {"elect", "k"}} {
		if _, said := run(t, 64, append(args, "--backend", "redis://127.0.0.1:1")...); strings.Contains(said, `\n`) {
			t.Error(said)
		}
	}
	run(t, 64, "limit", "k", "--rate", "1/s", "--backend", "etcd://127.0.0.1:1")
	run(t, 69, "limit", "k", "--rate", "1/s", "--backend", "redis://127.0.0.1:1", "--timeout", "100ms")
}
