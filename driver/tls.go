package driver

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
)

// LoadTLS adds to c the certificates that the URL options tls_ca, tls_cert and tls_key name.
// Options that are absent are skipped. All files are in PEM form:
//
//   - tls_ca: the authorities that sign the servers' certificates, instead of the system's
//   - tls_cert and tls_key: the client's certificate and key
//
// LoadTLS blocks while it reads the files. Its errors name the option.
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

// Authorities reads the certificates of authorities from a file in PEM form. The file must have
// at least one.
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
