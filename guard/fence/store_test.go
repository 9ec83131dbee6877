package fence_test

import (
	"math"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestStoreOnRedis(t *testing.T) {
	client, err := redis.Dial(testbed.Redis(t).URL())
	ok(t, err)
	defer client.Close()
	store := fence.NewStore(redis.NewFence(client))
	ctx := t.Context()
	get := func(key string) string {
		s, _ := client.Do(ctx, client.B().Get().Key(key).Build()).ToString()
		return s
	}
	put := func(value string) driver.Write { return driver.Write{Key: "k", Value: []byte(value)} }

	ok(t, store.Enter(ctx, grant(2, bound), "r"))
	ok(t, store.Enter(ctx, grant(2, bound), "r", put("two")))
	wantStale(t, store.Enter(ctx, grant(1, bound), "r", put("one")), token(2), token(1))
	wantStale(t, store.EnterOnce(ctx, grant(2, bound), "r", put("again")), token(2), token(2))
	expired, lost := grant(9, -time.Second), grant(9, bound)
	lost.end(interlock.ErrLost)
	wantKind(t, store.Enter(ctx, expired, "r", put("nine")), interlock.Definite, interlock.ErrExpired)
	wantKind(t, store.Enter(ctx, lost, "r", put("nine")), interlock.Definite, interlock.ErrLost)
	absurd := grant(3, bound)
	absurd.token = math.MaxInt64
	wantKind(t, store.Enter(ctx, absurd, "r", put("most")), interlock.Definite, interlock.ErrImplausibleToken)
	absurd.token = 0
	wantKind(t, store.Enter(ctx, absurd, "r", put("none")), interlock.Bug, nil)
	wantKind(t, store.Enter(ctx, grant(3, bound), "", put("none")), interlock.Bug, interlock.ErrName)
	if m, err := store.Show(ctx, "r"); err != nil || m.Token != token(2) || m.Source != grant(2, 0).Owner() || get("k") != "two" {
		t.Errorf("mark %+v, %v; value %q", m, err, get("k"))
	}

	for _, blank := range [][2]string{{"", "ops"}, {"restored", " "}} {
		_, err := store.Rebase(ctx, "r", token(1), blank[0], blank[1])
		wantKind(t, err, interlock.Bug, nil)
	}
	old, err := store.Rebase(ctx, "r", token(1), "restored", "ops")
	if err != nil || old.Token != token(2) {
		t.Errorf("it replaced %+v, %v", old, err)
	}
	ok(t, store.Enter(ctx, grant(1, bound), "r", put("one")))
	if get("k") != "one" {
		t.Errorf("value %q", get("k"))
	}
}
