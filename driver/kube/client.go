package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	coordination "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// client sends requests to the API server over one connection, closes a silent one, and sends no
// request twice.
type client struct {
	rest      rest.Interface
	namespace string
	idle      func() // closes connections that are not in use
	clock     *serverClock
}

// newClient returns a client of config, which it does not change. ping is the idle
// time after which a connection is checked, and the bound of the answer.
func newClient(config *rest.Config, namespace string, ping time.Duration) (*client, error) {
	c := rest.CopyConfig(config)
	c.Timeout = 0 // requests have their own bounds, and a watch has none
	c.WarningHandler = rest.NoWarnings{}
	if c.QPS == 0 && c.RateLimiter == nil {
		c.QPS = -1 // a renewal must not be throttled in its own process
	}
	transport, idle, err := transportOf(c, ping)
	if err != nil {
		return nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(c, transport)
	if err != nil {
		return nil, err
	}
	clock := &serverClock{}
	c.APIPath, c.GroupVersion = "/apis", &coordination.SchemeGroupVersion
	c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(types, serializer.NewCodecFactory(types)).WithoutConversion()
	if c.UserAgent == "" {
		c.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	leases, err := rest.RESTClientForConfigAndClient(c, &http.Client{Transport: datedTransport{wrapped, clock}})
	if err != nil {
		return nil, err
	}
	return &client{rest: leases, namespace: namespace, idle: idle, clock: clock}, nil
}

// types are the API types in use. The scheme of client-go's typed clients contains every
// type of Kubernetes, a quarter of what a program compiles.
var types = leaseTypes()

func leaseTypes() *runtime.Scheme {
	s := runtime.NewScheme()
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"})
	if err := coordination.AddToScheme(s); err != nil {
		panic(err) // two types with one name
	}
	return s
}

// transportOf returns the user's own transport, or one with an unshared connection.
func transportOf(c *rest.Config, ping time.Duration) (http.RoundTripper, func(), error) {
	if c.Transport != nil {
		return c.Transport, func() {}, nil
	}
	security, err := rest.TLSConfigFor(c)
	if err != nil {
		return nil, nil, err
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: security, TLSHandshakeTimeout: 10 * time.Second,
		DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		HTTP2:       &http.HTTP2Config{SendPingTimeout: ping, PingTimeout: ping}, ForceAttemptHTTP2: true,
		IdleConnTimeout: 90 * time.Second, MaxIdleConnsPerHost: 32,
	}
	if c.Proxy != nil {
		t.Proxy = c.Proxy
	}
	if c.Dial != nil {
		t.DialContext = c.Dial
	}
	return t, t.CloseIdleConnections, nil
}

func (c *client) leases(verb string) *rest.Request {
	return c.rest.Verb(verb).Namespace(c.namespace).Resource("leases").MaxRetries(0)
}

func (c *client) get(ctx context.Context, name string) (object, error) {
	return one(ctx, c.leases(http.MethodGet).Name(name))
}

func (c *client) update(ctx context.Context, l *coordination.Lease) (object, error) {
	return one(ctx, c.leases(http.MethodPut).Name(l.Name).Body(l))
}

// remove deletes an object, on the condition that it is unchanged.
func (c *client) remove(ctx context.Context, o object) error {
	only := metav1.Preconditions{UID: &o.lease.UID, ResourceVersion: &o.lease.ResourceVersion}
	return c.leases(http.MethodDelete).Name(o.lease.Name).Body(&metav1.DeleteOptions{Preconditions: &only}).Do(ctx).Error()
}

// write creates or updates, on the condition that the object is unchanged since l
// was drafted.
func (c *client) write(ctx context.Context, l *coordination.Lease) (object, error) {
	if l.ResourceVersion == "" {
		return one(ctx, c.leases(http.MethodPost).Body(l))
	}
	return c.update(ctx, l)
}

func one(ctx context.Context, r *rest.Request) (object, error) {
	var l coordination.Lease
	if err := r.Do(ctx).Into(&l); err != nil {
		return object{}, err
	}
	return newObject(&l)
}

// snapshot is a list of Leases at one revision.
type snapshot struct {
	objects []object
	rev     int64
	version string
}

// page is how many Leases one request lists.
const page = 500

// list reads the whole namespace, page by page, in its present state.
func (c *client) list(ctx context.Context) (snapshot, error) {
	var all snapshot
	for next := ""; ; {
		l, err := c.page(ctx, page, next)
		if err != nil {
			return snapshot{}, err
		}
		for i := range l.Items {
			o, err := newObject(&l.Items[i])
			if err != nil {
				return snapshot{}, err
			}
			all.objects = append(all.objects, o)
		}
		if next = l.Continue; next == "" {
			all.version = l.ResourceVersion
			all.rev, err = parseRevision(l.ResourceVersion)
			return all, err
		}
	}
}

// revision returns a revision not below that of any write before the call.
func (c *client) revision(ctx context.Context) (int64, error) {
	l, err := c.page(ctx, 1, "")
	if err != nil {
		return 0, err
	}
	return parseRevision(l.ResourceVersion)
}

func (c *client) page(ctx context.Context, limit int64, next string) (*coordination.LeaseList, error) {
	var l coordination.LeaseList
	o := metav1.ListOptions{Limit: limit, Continue: next}
	err := c.leases(http.MethodGet).VersionedParams(&o, runtime.NewParameterCodec(types)).Do(ctx).Into(&l)
	return &l, err
}

// watch returns all events after a revision, until ctx ends.
func (c *client) watch(ctx context.Context, version string) (watch.Interface, error) {
	o := metav1.ListOptions{Watch: true, ResourceVersion: version, AllowWatchBookmarks: true}
	return c.leases(http.MethodGet).VersionedParams(&o, runtime.NewParameterCodec(types)).Watch(ctx)
}

// orders rejects a server whose resource versions are not documented to be
// comparable: those before Kubernetes 1.35.
func (c *client) orders(ctx context.Context) error {
	text, err := c.rest.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Raw()
	if err != nil {
		return err
	}
	var v version.Info
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("/version: %w", err)
	}
	if !comparable135(v.Major, v.Minor) {
		return &oldServerError{v.Major + "." + v.Minor}
	}
	return nil
}

// comparable135 parses versions as servers report them, such as "1" and "35+".
func comparable135(major, minor string) bool {
	digits := func(s string) int {
		n, err := strconv.Atoi(strings.TrimRight(s, "+"))
		if err != nil {
			return -1
		}
		return n
	}
	x, y := digits(major), digits(minor)
	return x > 1 || x == 1 && y >= 35
}

// oldServerError means that tokens are not possible.
type oldServerError struct{ version string }

func (e *oldServerError) Error() string {
	return fmt.Sprintf("this is Kubernetes %s, and resource versions can be ordered from 1.35 on: "+
		"without that there are no tokens, so use kube.OpenAdvisory, or a fenced lock of another system", e.version)
}

var errNoNamespace = errors.New("the namespace does not exist")

// serverClock is the clock of the API server: the Date of its latest answer, in
// whole seconds, plus the time since.
type serverClock struct {
	mu   sync.Mutex
	date time.Time // zero if no answer had one
	at   boottime.Instant
}

// now returns the server's time, or that of otherwise until an answer has a date.
func (c *serverClock) now(otherwise func() time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.date.IsZero() {
		return otherwise()
	}
	return c.date.Add(boottime.Now().Sub(c.at))
}

// datedTransport sets the clock from every answer.
type datedTransport struct {
	next  http.RoundTripper
	clock *serverClock
}

func (t datedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		return answer, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		t.clock.mu.Lock()
		defer t.clock.mu.Unlock()
		t.clock.date, t.clock.at = date, boottime.Now()
	}
	return answer, nil
}

// kindOf classifies an error of a request that was sent. A refusal of the API
// server means that nothing was written; a server that reports its own failure or a
// timeout may have written.
func kindOf(err error) interlock.ErrorKind {
	switch {
	case driver.NeverSent(err):
		return interlock.Retryable
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsTooManyRequests(err):
		return interlock.Retryable
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err),
		apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsMethodNotSupported(err),
		apierrors.IsNotAcceptable(err), apierrors.IsUnsupportedMediaType(err), apierrors.IsRequestEntityTooLargeError(err):
		return interlock.Definite
	}
	return interlock.Uncertain
}

// failed wraps the error of a request that was sent under ctx.
func failed(ctx context.Context, op, name string, err error) error {
	return problem(op, name, kindOf(err), driver.WithCause(ctx, err))
}

// unread wraps the error like failed, for a request that only reads, so that nothing is uncertain.
func unread(ctx context.Context, op, name string, err error) error {
	err = failed(ctx, op, name, err)
	if interlock.Kind(err) != interlock.Uncertain {
		return err
	}
	return problem(op, name, interlock.Retryable, errors.Unwrap(err))
}

// doubtful returns the error of a read in a call whose earlier write has an unknown
// outcome.
func doubtful(op, name string, err error) error {
	return problem(op, name, interlock.Uncertain, errors.Unwrap(err))
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Driver: driverName, Name: name, Kind: kind, Err: err}
}

func refused(op, name string, err error) error { return problem(op, name, interlock.Bug, err) }

func errClosed(op, name string) error { return refused(op, name, interlock.ErrClosed) }

// moved reports whether an object had changed since it was read.
func moved(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

var (
	errSlow   = errors.New("the API server did not answer in time")
	errOthers = errors.New("other clients kept changing the Lease")
)
