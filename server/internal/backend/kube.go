package backend

import (
	"context"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/interlock-dev/interlock/driver/kube"
)

// kubeLocks finds the cluster as kubectl does: KUBECONFIG, else ~/.kube/config,
// else the service account of the pod that we are in.
func (t Target) kubeLocks(ctx context.Context, o Options) (*Locks, error) {
	if t.mode == "advisory" {
		return nil, withoutTokens(t.mode)
	}
	config, namespace, err := t.kubeConfig()
	if err != nil {
		return nil, err
	}
	d, err := kube.Open(ctx, config, &kube.Options{Namespace: namespace, TTL: o.TTL, Seed: o.Seed})
	return opened(below(o.Prefix, d), err, nothing)
}

// kubeAdvisory are the locks without tokens, of any version of Kubernetes.
func (t Target) kubeAdvisory(ctx context.Context, o Options) (*View, error) {
	config, namespace, err := t.kubeConfig()
	if err != nil {
		return nil, err
	}
	d, err := kube.OpenAdvisory(ctx, config, &kube.Options{Namespace: namespace, TTL: o.TTL})
	if err != nil {
		return nil, err
	}
	return &View{belowView(o.Prefix, d), d.Close}, nil
}

// kubeConfig is where the cluster is, and in which namespace the locks are: the
// URL's, else the one of the kubeconfig's context.
func (t Target) kubeConfig() (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = t.own.Get("kubeconfig")
	rules.WarnIfAllMissing = false
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: t.own.Get("context")})
	config, err := loader.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, "", &URLError{"no cluster is known: neither KUBECONFIG nor ~/.kube/config nor a pod's service account " +
			"tells of one; name a file with kube://namespace?kubeconfig=FILE and, if need be, context=NAME"}
	}
	if err != nil {
		return nil, "", &URLError{"the kubeconfig cannot be used: " + strings.Join(strings.Fields(err.Error()), " ")}
	}
	if len(t.endpoints) == 1 {
		return config, t.endpoints[0], nil
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", &URLError{"the kubeconfig names no namespace that can be used; write kube://namespace"}
	}
	return config, namespace, nil
}
