package wire_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/wire"
)

// One service holds the lock, and another one has the data.
func Example() {
	ctx := context.Background()
	space := memory.NewSpace() // or a database, or Redis: the guard of the service
	store := fence.NewStore(space.Fence())
	resource := func(r *http.Request) (string, error) { return strings.TrimPrefix(r.URL.Path, "/"), nil }
	service := httptest.NewServer(wire.Handler(resource, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := wire.From(r.Context())
		err := store.Enter(r.Context(), p, p.Name(), driver.Write{Key: p.Name(), Value: []byte("shipped")})
		if wire.Refuse(w, err) {
			return
		}
		fmt.Fprint(w, "shipped")
	}), nil))
	defer service.Close()

	d := space.Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	client := &http.Client{Transport: &wire.Transport{}}
	ship := func(ctx context.Context, c interlock.Claim) error {
		req, err := http.NewRequestWithContext(wire.Under(ctx, c, ""), http.MethodPost, service.URL+"/order/42", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if err := wire.Check(resp); err != nil || resp.StatusCode == http.StatusOK {
			return err
		}
		return errors.New(resp.Status)
	}
	err = locks.Do(ctx, "order/42", func(ctx context.Context, c interlock.Claim) error {
		fmt.Println("in order:", ship(ctx, c))
		newer, _ := c.Token().Next() // another holder's, after a pause that we did not notice
		_ = space.Fence().Enter(ctx, driver.Raise{Resource: "order/42", Token: newer})
		return ship(ctx, c)
	})
	fmt.Println("overtaken, refused:", errors.Is(err, interlock.ErrStaleToken))
	// Output:
	// in order: <nil>
	// overtaken, refused: true
}

// An untrusted worker gets a signed token that is valid for its job only, and no longer than the
// claim.
func ExampleSigner() {
	ctx := context.Background()
	key := ed25519.NewKeyFromSeed(make([]byte, 32)) // in practice from a store of secrets
	signer, err := wire.NewSigner("2026-07", key, nil)
	if err != nil {
		log.Fatal(err)
	}
	verifier, err := wire.NewVerifier("images", map[string]ed25519.PublicKey{"2026-07": key.Public().(ed25519.PublicKey)}, nil)
	if err != nil {
		log.Fatal(err)
	}

	d := memory.NewSpace().Open(nil)
	defer d.Close(ctx)
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close(ctx)
	err = locks.Do(ctx, "image/7", func(ctx context.Context, c interlock.Claim) error {
		text, err := signer.Sign(c, "", "images") // the worker sends it by wire.Carry
		if err != nil {
			return err
		}
		pass, err := verifier.Verify(text)
		fmt.Println(pass.Resource, pass.Token == c.Token(), pass.Remaining <= time.Minute, err)
		_, err = verifier.Verify(strings.Replace(text, "v4.public.e", "v4.public.f", 1))
		fmt.Println(err)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// image/7 true true <nil>
	// the fencing token is not signed by a key that is accepted: the signature is wrong
}

// A service with data in a database, which accepts signed tokens only.
func ExampleHandler() {
	var db driver.Beginner[driver.SQL] // such as postgres.Pool(pool) or mysql.DB(db)
	var verifier *wire.Verifier        // see NewVerifier
	withdraw := func(context.Context, driver.SQL) error { return nil }
	http.Handle("POST /accounts/{id}", wire.Handler(
		func(r *http.Request) (string, error) { return "account/" + r.PathValue("id"), nil },
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			p, _ := wire.From(r.Context())
			err := fence.Tx(r.Context(), db, fence.Table{}, p, p.Name(), withdraw)
			switch {
			case wire.Refuse(w, err):
			case err != nil:
				http.Error(w, "no", http.StatusUnprocessableEntity)
			}
		}), &wire.Options{Verifier: verifier}))
}
