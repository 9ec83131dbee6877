package doctor

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// canLock reports whether "interlock lock" would acquire a lock.
func canLock(t *testing.T, url, prefix string) bool {
	t.Helper()
	target, err := backend.Parse(url)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := target.Locks(t.Context(), backend.Options{Prefix: prefix})
	if err != nil {
		t.Logf("open: %v", err)
		return false
	}
	defer locks.Close(context.WithoutCancel(t.Context()))
	if _, err = locks.Acquire(t.Context(), driver.Request{Name: "n", Owner: "o"}); err == nil {
		err = locks.Release(t.Context(), "n", "o")
	}
	t.Logf("lock: %v", err)
	return err == nil
}

// least are the rights that the package comment of driver/redis documents.
const least = "~jobs/* ~interlock:{* ~redisson_lock_* resetchannels &interlock:push:* &interlock:changes:* " +
	"-@all +@read +@write +@scripting +@connection +@pubsub +info +time"

// A user that cannot lock is never ok, and one with the documented rights has them.
func TestRedisUsers(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	operator, err := redis.Dial("redis://" + server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	for name, c := range map[string]struct{ rights, query, want string }{
		"least":        {least, "", "redis.open=ok redis.rights=ok redis.durability=warning"},
		"nosubscribe":  {"~* &* +@all -subscribe", "", "redis.open=critical redis.durability=ok"},
		"nochannel":    {"~* +@all resetchannels", "", "redis.open=critical redis.durability=ok"},
		"noscripts":    {"~* &* +@all -@scripting", "", "redis.open=critical redis.durability=ok"},
		"noevalsha":    {"~* &* +@all -evalsha", "", "redis.open=ok redis.rights=critical redis.durability=ok"},
		"nozadd":       {"~* &* +@all -zadd", "", "redis.rights=critical redis.durability=ok"},
		"notime":       {"~* &* +@all -time", "", "redis.rights=critical clock=info redis.durability=ok"},
		"nokeys":       {"~jobs/* &* +@all", "", "redis.rights=critical redis.durability=ok"},
		"othernames":   {"~other/* ~interlock:{* &* +@all", "", "redis.rights=warning redis.durability=ok"},
		"noinfo":       {"~* &* +@all -info", "", "redis.info=warning redis.open=ok"},
		"blind":        {"~* &* +@all -info -config", "", "redis.info=warning redis.open=critical"},
		"blindandsure": {"~* &* +@all -info -config", "?eviction=none", "redis.info=warning redis.open=ok redis.rights=ok"},
		"plain":        {"~* &* +@all", "?mode=plain", "redis.plain=info redis.open=ok redis.durability=ok"},
	} {
		t.Run(name, func(t *testing.T) {
			command := append([]string{"SETUSER", name, "on", ">pw"}, strings.Fields(c.rights)...)
			if err := operator.Do(t.Context(), operator.B().Arbitrary("ACL").Args(command...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
			url := "redis://" + name + ":pw@" + server.Addr() + c.query
			r := examine(t, url, Options{Prefix: "jobs/"})
			mustFind(t, r, c.want)
			if !canLock(t, url, "jobs/") && r.Status == OK {
				t.Error("interlock lock fails, and doctor is content")
			}
		})
	}
}

// postgresRoles: each role is examined in both modes, in a schema of its own, as is a
// lock that it takes.
func postgresRoles(t *testing.T, server *testbed.Server) {
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	const granted = "grant usage on schema $ to $; grant select, insert, update, delete on all tables in schema $ to $;" +
		" grant usage, select, update on all sequences in schema $ to $;"
	for _, c := range []struct{ role, rights, session, table string }{
		{"creates", "drop schema $ cascade; create schema $ authorization $", "ok", "ok"},
		{"least", granted, "ok", "ok"},
		{"mayread", granted + "revoke insert, update on interlock_holder, interlock_lease from $", "critical", "critical"},
		{"maynotdelete", granted + "revoke delete on interlock_waiter, interlock_lease from $", "critical", "critical"},
		{"drawsno", granted + "revoke all on sequence interlock_token from $", "critical", "ok"},
		{"empty", "drop table interlock_holder, interlock_lease;" + granted, "critical", "critical"},
		{"notowner", "drop table interlock_watcher, interlock_lease;" + granted + "grant create on schema $ to $", "critical", "critical"},
		{"nothing", "", "critical", "critical"},
	} {
		statements := "create role $ login; create schema $; set search_path = $;" + strings.Join(postgres.Schema(""), ";") + ";" + c.rights
		if _, err := conn.Exec(t.Context(), strings.ReplaceAll(statements, "$", c.role), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", c.role, err)
		}
		for mode, want := range map[string]string{"session": c.session, "table": c.table} {
			target := "postgres://" + c.role + "@" + server.Addr() + "/postgres?sslmode=disable&mode=" + mode + "&options=-c%20search_path%3D" + c.role
			mustFind(t, examine(t, target, Options{}), "postgres.durability=ok postgres.rights="+want)
			if ok := canLock(t, target, ""); ok != (want == "ok") && c.role != "maynotdelete" { // the delete comes later
				t.Errorf("%s, %s: postgres.rights is %s, and locks can be taken: %v", c.role, mode, want, ok)
			}
		}
	}
}
