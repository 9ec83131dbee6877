package testbed

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bearer tokens of the users of a [Kube]. KubeAdmin has all permissions. KubeUser,
// whose name is "user", has the permissions that a test binds to it by RBAC.
const (
	KubeAdmin = "admin-token"
	KubeUser  = "user-token"
)

// Kube is a Kubernetes API server with its own etcd, which stores all data: Kill and
// Pause affect the API server only, and Wipe empties both. It serves HTTPS. There are
// no nodes, no controllers and no service accounts.
type Kube struct {
	*Server
	// CA is the server's certificate, in PEM; it names 127.0.0.1.
	CA []byte
	// Namespace is where the test may write: "default", or its own with [SharedKube].
	Namespace string
}

// KubeAPIServer starts an etcd and a kube-apiserver on it, and returns when the server
// is ready, which takes several seconds and about 300 MB. extra is appended to its
// arguments. Tests that do not break it use [SharedKube].
func KubeAPIServer(tb testing.TB, extra ...string) *Kube {
	tb.Helper()
	Binary(tb, "kube-apiserver") // skips the test before anything is started
	return kubeOn(tb, []*Server{Etcd(tb, "--unsafe-no-fsync")}, extra)
}

// KubeOnCluster starts a KubeAPIServer whose etcd has three members.
func KubeOnCluster(tb testing.TB, extra ...string) (*Kube, *Ensemble) {
	tb.Helper()
	Binary(tb, "kube-apiserver")
	store := EtcdCluster(tb, 3, "--unsafe-no-fsync")
	return kubeOn(tb, store.Peers, extra), store
}

func kubeOn(tb testing.TB, store []*Server, extra []string) *Kube {
	tb.Helper()
	path := Binary(tb, "kube-apiserver")
	keys, err := kubeKeys()
	if err != nil {
		tb.Fatalf("kube-apiserver: make keys: %v", err)
	}
	var urls []string
	for _, s := range store {
		urls = append(urls, s.URL())
	}
	used := false
	k := kind{
		name:  "kube-apiserver",
		url:   "https://%s",
		ports: 1,
		ready: func(addr string) error { return askKube(addr, keys.certificate) },
		prepare: func(data string) error {
			if used {
				if err := renew(store); err != nil {
					return err
				}
			}
			used = true
			return keys.write(data)
		},
		command: func(data string, ports []*port) []string {
			at := func(file string) string { return filepath.Join(data, file) }
			return []string{path, "--etcd-servers=" + strings.Join(urls, ","),
				"--bind-address=127.0.0.1", "--secure-port=" + ports[0].String(),
				"--tls-cert-file=" + at("tls.crt"), "--tls-private-key-file=" + at("tls.key"),
				"--service-account-issuer=https://kubernetes.default.svc",
				"--service-account-key-file=" + at("sa.pub"), "--service-account-signing-key-file=" + at("sa.key"),
				"--authorization-mode=RBAC", "--token-auth-file=" + at("tokens.csv"),
				"--service-cluster-ip-range=10.0.0.0/24", "--disable-admission-plugins=ServiceAccount",
				"--endpoint-reconciler-type=none", "--profiling=false", "--cert-dir=" + data}
		},
	}
	return &Kube{Server: launch(tb, k, extra), CA: keys.certificate, Namespace: "default"}
}

// renew wipes a server whose data is in store.
func renew(store []*Server) error {
	for _, s := range store { // kill all first, because a running one would pass on its data
		s.mu.Lock()
		defer s.mu.Unlock()
		if err := s.kill(); err != nil {
			return err
		}
	}
	for _, s := range store {
		if err := s.emptyData(); err != nil {
			return err
		}
		if err := s.start(); err != nil {
			return err
		}
	}
	return nil
}

// create creates a namespace.
func (k *Kube) create(namespace string) error {
	body := fmt.Sprintf(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, namespace)
	request, err := http.NewRequest(http.MethodPost, k.URL()+"/api/v1/namespaces", strings.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	return asAdmin(request, k.CA, http.StatusCreated)
}

// TLS returns a client configuration for the server.
func (k *Kube) TLS() *tls.Config { return trusting(k.CA) }

func trusting(ca []byte) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots}
}

// askKube checks whether the server is ready.
func askKube(addr string, ca []byte) error {
	request, err := http.NewRequest(http.MethodGet, "https://"+addr+"/readyz", nil)
	if err != nil {
		return err
	}
	return asAdmin(request, ca, http.StatusOK)
}

// asAdmin makes a request as KubeAdmin.
func asAdmin(request *http.Request, ca []byte, want int) error {
	request.Header.Set("Authorization", "Bearer "+KubeAdmin)
	_, err := send(request, 2*time.Second, trusting(ca), want)
	return err
}

// kubeFiles are the files of every API server of this process.
type kubeFiles struct {
	certificate, key       []byte // of its TLS
	accountKey, accountPub []byte // for the tokens of service accounts, which are not used
}

func (f *kubeFiles) write(data string) error {
	tokens := KubeAdmin + `,admin,admin,"system:masters"` + "\n" + KubeUser + ",user,user\n"
	for name, content := range map[string][]byte{"tls.crt": f.certificate, "tls.key": f.key,
		"sa.key": f.accountKey, "sa.pub": f.accountPub, "tokens.csv": []byte(tokens)} {
		if err := os.WriteFile(filepath.Join(data, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// kubeKeys generates the keys once, because that takes time.
var kubeKeys = sync.OnceValues(func() (*kubeFiles, error) {
	var f kubeFiles
	account, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	f.accountKey = pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(account)})
	public, err := x509.MarshalPKIXPublicKey(&account.PublicKey)
	if err != nil {
		return nil, err
	}
	f.accountPub = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	f.certificate, f.key, err = LoopbackCertificate()
	return &f, err
})
