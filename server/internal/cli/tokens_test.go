package cli_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestTokens: a base that no guard accepts is rejected, repaired, and moved to.
func TestTokens(t *testing.T) {
	t.Parallel()
	program(t)
	server, left := testbed.Etcd(t), testbed.Etcd(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Logger: zap.NewNop()})
	testbed.OK(t, err)
	defer client.Close()
	years := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
	if _, err := client.Put(t.Context(), "script-01-tokens/interlock.base", strconv.FormatInt(years, 10)); err != nil {
		t.Fatal(err)
	}
	scripts(t, "tokens", map[string]string{"INTERLOCK_BACKEND": "etcd://" + server.Addr(), "LEFT": "etcd://" + left.Addr()})
}

// TestErrorsOfOtherBackends: the error of a backend that another flag names does not advise --backend.
func TestErrorsOfOtherBackends(t *testing.T) {
	t.Setenv("INTERLOCK_BACKEND", "")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	_, said := run(t, 69, "tokens", "move", "--from", "redis://"+nobodyAt(t), "--timeout", "1s")
	if !strings.HasPrefix(said, "interlock: cannot reach redis://") || strings.Contains(said, "--backend") {
		t.Error(said)
	}
	_, said = run(t, 64, "xa", "ls", "--participant", "north=redis://127.0.0.1:1")
	if !strings.Contains(said, "redis prepares no transactions") || strings.Contains(said, "--backend") {
		t.Error(said)
	}
}

// tokensOnKube: a Lease with an implausible base keeps drivers from opening until a
// recorded repair, and a move raises later tokens.
func tokensOnKube(t *testing.T, k *testbed.Kube) {
	url := kubeConfigFor(t, k, testbed.KubeAdmin)
	run(t, 0, "lock", "n", "--backend", url, "--", "true")
	far := interlock.CounterAt(time.Now().Add(5 * 365 * 24 * time.Hour))
	leases, err := coordinationclient.NewForConfig(&rest.Config{Host: k.URL(), BearerToken: testbed.KubeAdmin,
		TLSClientConfig: rest.TLSClientConfig{CAData: k.CA}})
	testbed.OK(t, err)
	patch := `{"metadata":{"annotations":{"interlock-dev.github.io/base":"` + strconv.FormatInt(far, 10) + `"}}}`
	if _, err := leases.Leases(k.Namespace).Patch(t.Context(), "n", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, said := run(t, 78, "lock", "other", "--wait=1m", "--backend", url, "--", "true"); !strings.Contains(said, "interlock tokens repair") {
		t.Errorf("refused with %q", said)
	}
	if out, _ := run(t, 0, "tokens", "repair", "--reason", "a clock", "--backend", url); !strings.HasPrefix(out, "repaired by ") {
		t.Errorf("repaired with %q", out)
	}
	if out, _ := run(t, 0, "locks", "history", "interlock.base", "--backend", url); !strings.Contains(out, "a clock") {
		t.Errorf("the record is %q", out)
	}
	run(t, 0, "lock", "n", "--backend", url, "--", "true")
	from := backends["redis"](t)
	run(t, 0, "tokens", "move", "--from", from, "--backend", url)
	base, err := leases.Leases(k.Namespace).Get(t.Context(), "interlock.base", metav1.GetOptions{})
	if err != nil || base.Annotations["interlock-dev.github.io/base"] == "" {
		t.Errorf("the base after a move: %+v, %v", base, err)
	}
}
