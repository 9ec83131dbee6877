package driver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
)

// LoadTLS adds to c the certificates that the options tls_ca, tls_cert and tls_key of a
// backend's URL name, and leaves out what they do not. tls_ca is a file with the
// authorities that sign the servers' certificates, instead of the system's. tls_cert and
// tls_key are files with the client's own certificate. All are in PEM form. It blocks for
// reading them; its errors name the option.
func LoadTLS(c *tls.Config, options url.Values) (err error) {
	if ca := options.Get("tls_ca"); ca != "" {
		if c.RootCAs, err = Authorities(ca); err != nil {
			return fmt.Errorf("tls_ca: %w", err)
		}
	}
	cert, key := options.Get("tls_cert"), options.Get("tls_key")
	if cert == "" && key == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("tls_cert and tls_key: %w", err)
	}
	c.Certificates = []tls.Certificate{pair}
	return nil
}

// Authorities reads the certificates of authorities from a file in PEM form, which has at
// least one.
func Authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM form", file)
	}
	return pool, nil
}
