package cli_test

import (
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestTokens: a base that no guard accepts is refused, repaired, and moved to.
func TestTokens(t *testing.T) {
	program(t)
	server, left := testbed.Etcd(t), testbed.Etcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	years := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
	if _, err := client.Put(t.Context(), "script-01-tokens/interlock.base", strconv.FormatInt(years, 10)); err != nil {
		t.Fatal(err)
	}
	scripts(t, "tokens", map[string]string{"INTERLOCK_BACKEND": "etcd://" + server.Addr(), "LEFT": "etcd://" + left.Addr()})
}
