package kafka

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"hash"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// storeSCRAM gives the broker the password of a user, for SCRAM.
func storeSCRAM(t *testing.T, client *kgo.Client, user, password string) {
	t.Helper()
	const iterations = 4096
	salt := []byte("sixteen bytes ok")
	for mechanism, hash := range map[int8]func() hash.Hash{1: sha256.New, 2: sha512.New} {
		u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
		u.Name, u.Mechanism, u.Iterations, u.Salt = user, mechanism, iterations, salt
		var err error
		if u.SaltedPassword, err = pbkdf2.Key(hash, password, salt, iterations, hash().Size()); err != nil {
			t.Fatal(err)
		}
		r := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
		r.Upsertions = append(r.Upsertions, u)
		answer, err := r.RequestWith(t.Context(), client)
		if err == nil {
			err = kerr.ErrorForCode(answer.Results[0].ErrorCode)
		}
		testbed.OK(t, err)
	}
}

// TestSASL sends and consumes a message over TLS by each mechanism. Wrong credentials are an error
// that says so, at once for a consumer.
func TestSASL(t *testing.T) {
	t.Parallel()
	const user, password = "shop", "correct horse"
	server, secure, ca := testbed.KafkaSASL(t, user, password)
	s := sceneOn(t, server.Addr(), 1)
	storeSCRAM(t, s.queue(nil).client, user, password)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	secured := &scene{t, secure, s.topic}
	encrypted := kgo.DialTLSConfig(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	for name, mechanism := range map[string]func(user, password string) sasl.Mechanism{
		"PLAIN": func(user, password string) sasl.Mechanism {
			return plain.Auth{User: user, Pass: password}.AsMechanism()
		},
		"SCRAM-SHA-256": func(user, password string) sasl.Mechanism {
			return scram.Auth{User: user, Pass: password}.AsSha256Mechanism()
		},
		"SCRAM-SHA-512": func(user, password string) sasl.Mechanism {
			return scram.Auth{User: user, Pass: password}.AsSha512Mechanism()
		},
	} {
		client := func(password string) []kgo.Opt { return []kgo.Opt{encrypted, kgo.SASL(mechanism(user, password))} }
		sink := func(password string) *Sink {
			sink, err := OpenSink("kafka://"+secure, &SinkOptions{Client: client(password)})
			testbed.OK(t, err)
			t.Cleanup(sink.Close)
			return sink
		}
		m := driver.Message{ID: name, Topic: s.topic, Key: name, Payload: []byte("text")}
		if err := sink(password).Publish(t.Context(), []driver.Message{m})[0]; err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c := secured.join(&QueueOptions{Group: name, Client: client(password)})
		for c.Take(1)[0].ID != name { // those of the other mechanisms come before
			continue
		}
		c.Leave()

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := secured.queue(&QueueOptions{Client: client("wrong")}).Join(ctx, s.topic, driver.QueueOptions{})
		cancel()
		if interlock.Kind(err) != interlock.Definite || !errors.Is(err, kerr.SaslAuthenticationFailed) || !strings.Contains(err.Error(), "SASL") {
			t.Errorf("%s, wrong password: joined: %v", name, err)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		err = sink("wrong").Publish(ctx, []driver.Message{m})[0]
		cancel()
		if interlock.Kind(err) != interlock.Retryable || !errors.Is(err, kerr.SaslAuthenticationFailed) {
			t.Errorf("%s, wrong password: published: %v", name, err)
		}
	}
}
