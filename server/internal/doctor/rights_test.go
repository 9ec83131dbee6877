package doctor

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

// canLock reports whether "interlock lock" would acquire a lock.
func canLock(t *testing.T, url, prefix string) bool {
	t.Helper()
	target, err := backend.Parse(url)
	testbed.OK(t, err)
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

// TestRedisUsers requires ok for exactly the users that can lock.
func TestRedisUsers(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	operator, err := redis.Dial("redis://" + server.Addr())
	testbed.OK(t, err)
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
		"nowait":       {"~* &* +@all -wait", "?replicas=1", "redis.unconfirmed=critical redis.rights=critical redis.durability=ok"},
		"inurl":        {least, "?prefix=jobs/", "redis.open=ok redis.rights=ok redis.durability=warning"},
		"plain":        {"~* &* +@all", "?mode=plain", "redis.plain=info redis.open=ok redis.durability=ok"},
	} {
		t.Run(name, func(t *testing.T) {
			command := append([]string{"SETUSER", name, "on", ">pw"}, strings.Fields(c.rights)...)
			testbed.OK(t, operator.Do(t.Context(), operator.B().Arbitrary("ACL").Args(command...).Build()).Error())
			url := "redis://" + name + ":pw@" + server.Addr() + c.query
			prefix := "jobs/"
			if strings.Contains(c.query, "prefix=") {
				prefix = ""
			}
			r := examine(t, url, Options{Prefix: prefix})
			mustFind(t, r, c.want)
			if !canLock(t, url, prefix) && r.Status == OK {
				t.Error("interlock lock fails, and doctor is content")
			}
		})
	}
}

// postgresRoles examines each role in both modes, in its own schema, and takes a lock
// with it.
func postgresRoles(t *testing.T, server *testbed.Server) {
	conn, err := pgx.Connect(t.Context(), server.URL())
	testbed.OK(t, err)
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
			if ok := canLock(t, target, ""); ok != (want == "ok") && c.role != "maynotdelete" { // deletes happen later
				t.Errorf("%s, %s: postgres.rights is %s, and locks can be acquired: %v", c.role, mode, want, ok)
			}
		}
	}
}

// mysqlUsers examines each user in both modes, in its own database, and takes a lock with
// it.
func mysqlUsers(t *testing.T, root *sql.DB, server *testbed.Server) {
	const granted = "grant select, insert, update, delete on $.* to $;"
	for _, c := range []struct{ user, rights, session, table string }{
		{"creates", "drop database $; create database $; grant select, insert, update, delete, create on $.* to $", "ok", "ok"},
		{"least", granted, "ok", "ok"},
		{"mayread", "grant select on $.* to $", "critical", "critical"},
		{"noinsert", "grant select, update, delete on $.* to $", "critical", "critical"},
		{"tables", "grant select, insert, update, delete on $.interlock_lease to $; grant select, insert, update, delete on $.interlock_lease_swept to $;" +
			"grant select, insert, update, delete on $.interlock_lease_break to $", "critical", "ok"},
		{"empty", "drop table $.interlock_holder; drop table $.interlock_lease;" + granted, "critical", "critical"},
		{"nothing", "create table $.other (k int); grant select on $.other to $", "critical", "critical"},
	} {
		statements := []string{"create user $", "create database $"}
		for _, s := range mysql.Schema("") {
			statements = append(statements, strings.Replace(s, "create table if not exists ", "create table $.", 1))
		}
		for _, s := range append(statements, strings.Split(c.rights, ";")...) {
			if s = strings.TrimSpace(strings.ReplaceAll(s, "$", c.user)); s == "" {
				continue
			}
			if _, err := root.ExecContext(t.Context(), s); err != nil {
				t.Fatalf("%s: %q: %v", c.user, s, err)
			}
		}
		for mode, want := range map[string]string{"session": c.session, "table": c.table} {
			target := "mysql://" + c.user + "@" + server.Addr() + "/" + c.user + "?mode=" + mode
			mustFind(t, examine(t, target, Options{}), "mysql.durability=ok mysql.rights="+want)
			if c.user == "creates" {
				mustBeEmpty(t, root, c.user, mode)
			}
			if ok := canLock(t, target, ""); ok != (want == "ok") {
				t.Errorf("%s, %s: mysql.rights is %s, and locks can be acquired: %v", c.user, mode, want, ok)
			}
		}
	}
}

// mustBeEmpty requires that an examination created no table of a mode.
func mustBeEmpty(t *testing.T, root *sql.DB, database, mode string) {
	t.Helper()
	name := map[string]string{"session": "interlock_holder%", "table": "interlock_lease%"}[mode]
	n := 0
	if err := root.QueryRowContext(t.Context(), `select count(*) from information_schema.tables
		where table_schema = ? and table_name like ?`, database, name).Scan(&n); err != nil || n != 0 {
		t.Errorf("%s: %d tables were created; %v", mode, n, err)
	}
}

// TestEtcdUsers requires that a user that cannot lock is never ok, and one with the
// documented rights is. Nothing is written.
func TestEtcdUsers(t *testing.T) {
	t.Parallel()
	server := testbed.Etcd(t, "--unsafe-no-fsync")
	admin := etcdClient(t, server)
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		testbed.OK(t, err)
	}
	must(admin.UserAdd(ctx, "root", "pw"))
	must(admin.UserGrantRole(ctx, "root", "root"))
	users := map[string]struct {
		key, end string
		may      clientv3.PermissionType
		want     string
	}{
		"least":    {"jobs/", clientv3.GetPrefixRangeEnd("jobs/"), clientv3.PermissionType(clientv3.PermReadWrite), "ok"},
		"wide":     {"\x00", "\x00", clientv3.PermissionType(clientv3.PermReadWrite), "ok"},
		"reads":    {"jobs/", clientv3.GetPrefixRangeEnd("jobs/"), clientv3.PermissionType(clientv3.PermRead), "critical"},
		"writes":   {"jobs/", clientv3.GetPrefixRangeEnd("jobs/"), clientv3.PermissionType(clientv3.PermWrite), "critical"},
		"stranger": {"other/", clientv3.GetPrefixRangeEnd("other/"), clientv3.PermissionType(clientv3.PermReadWrite), "critical"},
		"narrow":   {"jobs/interlock.base", "", clientv3.PermissionType(clientv3.PermReadWrite), "critical"},
	}
	for name, u := range users {
		must(admin.UserAdd(ctx, name, "pw"))
		must(admin.RoleAdd(ctx, name))
		must(admin.RoleGrantPermission(ctx, name, u.key, u.end, u.may))
		must(admin.UserGrantRole(ctx, name, name))
	}
	must(admin.UserAdd(ctx, "nothing", "pw"))
	must(admin.AuthEnable(ctx))
	examineUser := func(name, want string) {
		url := "etcd://" + name + ":pw@" + server.Addr()
		mustFind(t, examine(t, url, Options{Prefix: "jobs/"}), "etcd.members=warning etcd.auth=ok etcd.rights="+want)
		if ok := canLock(t, url, "jobs/"); ok != (want == "ok") {
			t.Errorf("%s: etcd.rights is %s, and locks can be acquired: %v", name, want, ok)
		}
	}
	before := examine(t, "etcd://root:pw@"+server.Addr(), Options{Prefix: "jobs/"})
	mustFind(t, before, "etcd.members=warning etcd.auth=ok etcd.rights=ok")
	for _, f := range before.Findings {
		if f.ID == "etcd.tokens" {
			t.Errorf("a base of tokens was written: %v", f)
		}
	}
	mustFind(t, examine(t, "etcd://least:pw@"+server.Addr()+"?prefix=jobs/", Options{}), "etcd.members=warning etcd.rights=ok")
	examineUser("nothing", "critical")
	for name, u := range users {
		examineUser(name, u.want)
	}
}
