package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	authorization "k8s.io/api/authorization/v1"
	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

type kubeProbe struct {
	http      *http.Client
	host      string
	namespace string
	advisory  bool // mode=advisory: locks without tokens
}

func dialKube(ctx context.Context, u *backend.URL, _ Options) (probe, error) {
	opened, err := u.Open(ctx) // it sends nothing
	if err != nil {
		return nil, err
	}
	defer opened.Close(ctx)
	config, namespace := opened.Connection().(interface {
		Cluster() (*rest.Config, string)
	}).Cluster()
	p, err := kubeFor(config, namespace)
	if err != nil {
		return nil, err
	}
	p.advisory = u.Setting("mode") == "advisory"
	return p, nil
}

func kubeFor(config *rest.Config, namespace string) (*kubeProbe, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &kubeProbe{http: client, host: server.String(), namespace: namespace}, nil
}

func (p *kubeProbe) close() { p.http.CloseIdleConnections() }

func (p *kubeProbe) ping(ctx context.Context) error {
	_, _, err := p.version(ctx)
	return err
}

// version returns the version, and the time of the answer to a second; zero if unknown.
func (p *kubeProbe) version(ctx context.Context) (v version.Info, at time.Time, err error) {
	header, err := p.call(ctx, http.MethodGet, "/version", nil, &v)
	at, _ = http.ParseTime(header.Get("Date"))
	return v, at, err
}

// call sends a request, with a body unless it is nil, and decodes the response into answer.
// It uses plain JSON: typed clients would compile every type of Kubernetes into the
// program. It requests only metadata of lists that need no more.
func (p *kubeProbe) call(ctx context.Context, method, path string, body, answer any) (http.Header, error) {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, p.host+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if _, ok := answer.(*metav1.PartialObjectMetadataList); ok {
		request.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json")
	}
	response, err := p.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, apierrors.NewGenericServerResponse(response.StatusCode, method, schema.GroupResource{}, path, "", 0, true)
	}
	return response.Header, json.NewDecoder(response.Body).Decode(answer)
}

// leases returns the path of the Leases of the namespace.
func (p *kubeProbe) leases() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + p.namespace + "/leases"
}

// configMaps returns the path of its ConfigMaps.
func (p *kubeProbe) configMaps() string { return "/api/v1/namespaces/" + p.namespace + "/configmaps" }

// verbs are the verbs that locks need on Leases.
var verbs = []string{"get", "list", "watch", "create", "update"}

func (p *kubeProbe) inspect(ctx context.Context, r *Report) error {
	sent := time.Now()
	v, at, err := p.version(ctx)
	received := time.Now()
	if err != nil {
		return err
	}
	r.addIf(!p.advisory && olderThan(v.Major+"."+v.Minor, 1, 35), "kube.version", Critical, "Kubernetes %s.%s", v.Major, v.Minor)
	var denied []string
	for _, verb := range verbs {
		ok, err := p.allowed(ctx, verb)
		if err != nil {
			return err
		}
		if !ok {
			denied = append(denied, verb)
		}
	}
	r.addIf(len(denied) > 0, "kube.rights", Critical, "rights on Leases in %s that are missing: %s", p.namespace, joinOrNone(denied))
	sweeps, err := p.allowed(ctx, "delete")
	if err != nil {
		return err
	}
	r.addIf(!sweeps, "kube.sweep", Info, "unused Leases may be deleted: %v", sweeps)
	if err := p.legacy(ctx, r); err != nil {
		return err
	}
	if at.IsZero() {
		at = received
	} else {
		r.skew(at.Add(500*time.Millisecond), sent, received, 500*time.Millisecond)
	}
	return p.tokens(ctx, r, at)
}

// tokens checks the highest base of the Leases, if there are any.
func (p *kubeProbe) tokens(ctx context.Context, r *Report, now time.Time) error {
	var top int64
	for next := ""; ; {
		var all coordination.LeaseList
		_, err := p.call(ctx, http.MethodGet, p.leases()+"?limit=500&continue="+url.QueryEscape(next), nil, &all)
		if apierrors.IsForbidden(err) {
			return nil // kube.rights reports it
		}
		if err != nil {
			return err
		}
		for _, l := range all.Items {
			base, err := driver.ParseInt(l.Annotations["interlock-dev.github.io/base"])
			revision, _ := driver.ParseInt(l.ResourceVersion)
			if err == nil && base <= interlock.MaxCounter {
				top = max(top, base+min(revision, interlock.MaxCounter))
			}
		}
		if next = all.Continue; next == "" {
			break
		}
	}
	if top > 0 {
		r.tokens("kube.tokens", top, nil, now)
	}
	return nil
}

// allowed asks whether this client may use a verb; the server stores nothing.
func (p *kubeProbe) allowed(ctx context.Context, verb string) (bool, error) {
	review := authorization.SelfSubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
			Namespace: p.namespace, Verb: verb, Group: "coordination.k8s.io", Resource: "leases"}}}
	_, err := p.call(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, &review)
	return err == nil && review.Status.Allowed, err
}

// legacyKey is the annotation of client-go's locks before Leases existed.
const legacyKey = "control-plane.alpha.kubernetes.io/leader"

// legacy finds locks of the former kind, which clients of Leases do not see.
func (p *kubeProbe) legacy(ctx context.Context, r *Report) error {
	const id = "kube.legacy"
	var maps metav1.PartialObjectMetadataList
	_, err := p.call(ctx, http.MethodGet, p.configMaps(), nil, &maps)
	if apierrors.IsForbidden(err) {
		r.add(id, Info, "ConfigMaps may not be listed")
		r.Findings[len(r.Findings)-1].Do = "to find such locks, add list on configmaps to the Role"
		return nil
	}
	if err != nil {
		return err
	}
	var found []string
	for _, m := range maps.Items {
		if _, ok := m.Annotations[legacyKey]; ok {
			found = append(found, "configmaps/"+m.Name)
		}
	}
	r.addIf(len(found) > 0, id, Warning, "locks of the kind before Leases: %s", joinOrNone(found))
	return nil
}
