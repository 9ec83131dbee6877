package testbed

import (
	"bytes"
	"net/http"
	"testing"
	"time"
)

// kubeClient speaks to one API server, over a connection for each request.
type kubeClient struct {
	*testing.T
	kube *Kube
	http *http.Client
}

func newKubeClient(t *testing.T, k *Kube) *kubeClient {
	return &kubeClient{t, k, &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: k.TLS()}}}
}

// status is what a request is answered with; 0 if it is not.
func (c *kubeClient) status(method, path, token, body string) int {
	c.Helper()
	request, err := http.NewRequest(method, c.kube.URL()+path, bytes.NewBufferString(body))
	if err != nil {
		c.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := c.http.Do(request)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}

func (c *kubeClient) want(status int, method, path, token, body string) {
	c.Helper()
	if got := c.status(method, path, token, body); got != status {
		c.Fatalf("%s %s is answered with %d, want %d", method, path, got, status)
	}
}

// What is written survives the API server's death and not a wipe; a stopped one
// does not answer; a user without rights has none.
func TestKubeAPIServer(t *testing.T) {
	k := KubeAPIServer(t)
	c := newKubeClient(t, k)
	const leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	const lease = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n"}}`
	c.want(http.StatusCreated, "POST", leases, KubeAdmin, lease)
	c.want(http.StatusForbidden, "GET", leases+"/n", KubeUser, "")
	k.Kill()
	c.want(0, "GET", leases+"/n", KubeAdmin, "")
	k.Restart()
	c.want(http.StatusOK, "GET", leases+"/n", KubeAdmin, "")

	k.Pause()
	c.http.Timeout = 300 * time.Millisecond
	c.want(0, "GET", leases+"/n", KubeAdmin, "")
	c.http.Timeout = 10 * time.Second
	k.Resume()
	c.want(http.StatusOK, "GET", leases+"/n", KubeAdmin, "")

	k.Wipe()
	c.want(http.StatusNotFound, "GET", leases+"/n", KubeAdmin, "")
}
