package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/interlock-dev/interlock"
)

// legacyKey holds the locks of client-go before Leases. Its MultiLock of that time
// writes one beside the Lease.
const legacyKey = "control-plane.alpha.kubernetes.io/leader"

// A LegacyLockError means that a ConfigMap or Endpoints of the lock's name has a lock of an old
// client-go. Its users ignore Leases, so taking the Lease would not exclude them. It is Definite.
type LegacyLockError struct {
	Resource  string // "configmaps" or "endpoints"
	Namespace string
	Name      string // of the object
	Holder    string // as last written; empty if it was released
}

// Error explains how to migrate.
func (e *LegacyLockError) Error() string {
	return fmt.Sprintf("%s %s/%s carries a lock of the kind before Leases (last holder %q): have all its users take Leases, "+
		"by way of client-go's configmapsleases or endpointsleases if they must not pause, then remove its annotation %s",
		e.Resource, e.Namespace, e.Name, e.Holder, legacyKey)
}

// ErrorKind returns [interlock.Definite].
func (e *LegacyLockError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// clear checks once for locks of the old kinds under a name. Without the right to
// read them it continues.
func (d *Driver) clear(ctx context.Context, name, at string) error {
	if d.look(at).cleared {
		return nil
	}
	for _, resource := range []string{"configmaps", "endpoints"} {
		rctx, cancel := d.bounded(ctx)
		found, err := d.client.legacy(rctx, resource, at)
		if err != nil {
			err = unread(rctx, "acquire", name, err)
		} else if found != nil {
			err = problem("acquire", name, interlock.Definite, found)
		}
		cancel()
		if err != nil {
			return err
		}
	}
	d.mu.Lock()
	d.view.at(at).cleared = true
	d.mu.Unlock()
	return nil
}

// legacy reads only the metadata of an object.
func (c *client) legacy(ctx context.Context, resource, name string) (*LegacyLockError, error) {
	text, err := c.rest.Verb(http.MethodGet).AbsPath("/api/v1").Namespace(c.namespace).Resource(resource).Name(name).
		SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json").
		MaxRetries(0).Do(ctx).Raw()
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("%s %s: %w", resource, name, err)
	}
	value, found := o.Annotations[legacyKey]
	if !found {
		return nil, nil
	}
	var record struct{ HolderIdentity string }
	_ = json.Unmarshal([]byte(value), &record) // with any content it is a lock
	return &LegacyLockError{Resource: resource, Namespace: c.namespace, Name: name, Holder: record.HolderIdentity}, nil
}
