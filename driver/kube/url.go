package kube

import (
	"context"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "kube", Form: "kube://namespace",
		Settings: map[string][]string{"context": nil, "kubeconfig": nil, "mode": {"fenced", "advisory"}},
		MinTTL:   minTTL, MaxTTL: maxTTL, WholeSeconds: true,
		Check: func(u *backend.URL) error {
			if u.Path() != "" || u.User() != nil {
				return &backend.URLError{Reason: "a kube URL is kube://namespace; the kubeconfig has the user and the cluster (?kubeconfig=FILE, ?context=NAME)"}
			}
			if n := u.Namespace(); n != "" && len(validation.IsDNS1123Label(n)) > 0 {
				return &backend.URLError{Reason: "the namespace in the kube URL is not one: it has lower-case letters, digits and -"}
			}
			return nil
		},
		CheckFenced: func(u *backend.URL) error {
			if u.Setting("mode") == "advisory" {
				return backend.WithoutTokens("advisory")
			}
			return nil
		},
		Connect: func(_ context.Context, u *backend.URL) (backend.Connection, error) {
			config, namespace, err := find(u)
			if err != nil {
				return nil, err
			}
			return connection{config, namespace, u.Setting("mode") == "advisory"}, nil
		},
	})
}

// connection is what a URL opens.
type connection struct {
	config    *rest.Config
	namespace string
	advisory  bool
}

// Fenced opens a [Driver].
func (c connection) Fenced(ctx context.Context, o backend.LockOptions) (backend.Locks, error) {
	return Open(ctx, c.config, &Options{Namespace: c.namespace, TTL: o.TTL, Seed: o.Seed})
}

// View opens an [Advisory] for ?mode=advisory, on any version of Kubernetes.
func (c connection) View(ctx context.Context, o backend.LockOptions) (backend.View, bool, error) {
	if !c.advisory {
		return nil, false, nil
	}
	d, err := OpenAdvisory(ctx, c.config, &Options{Namespace: c.namespace, TTL: o.TTL})
	return d, true, err
}

// Cluster returns the cluster and the namespace.
func (c connection) Cluster() (*rest.Config, string) { return c.config, c.namespace }

// Close does nothing.
func (c connection) Close() error { return nil }

// find finds the cluster as kubectl does: KUBECONFIG, else ~/.kube/config, else the
// service account of the pod. The namespace is that of the URL, else that of the
// kubeconfig's context.
func find(u *backend.URL) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = u.Setting("kubeconfig")
	rules.WarnIfAllMissing = false
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: u.Setting("context")})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", &backend.URLError{Reason: "no cluster is named by KUBECONFIG, ~/.kube/config or a pod's service account; " +
			"name a file with kube://namespace?kubeconfig=FILE, and a context with &context=NAME"}
	}
	if err != nil {
		return nil, "", &backend.URLError{Reason: "the kubeconfig cannot be used: " + strings.Join(strings.Fields(err.Error()), " ")}
	}
	if n := u.Namespace(); n != "" {
		return config, n, nil
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", &backend.URLError{Reason: "the kubeconfig names no namespace that can be used; write kube://namespace"}
	}
	return config, namespace, nil
}
