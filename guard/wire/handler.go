package wire

import (
	"context"
	"net/http"
)

// A Resource returns the resource of a request: the name under which its guard is entered. If
// it returns an error, the response is 400 with the error's text.
type Resource func(*http.Request) (string, error)

// Handler returns a handler that calls next for requests with a token for their resource. It
// answers all other requests with a problem and does not call next; see the package comment.
// The context of next holds the [*Passage], and ends with it.
//
// Handler does not enter a guard: next does, with the passage, in the transaction or the step
// of the store in which it works.
func Handler(resource Resource, next http.Handler, o *Options) http.Handler {
	options := o.resolve()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, end, err := options.Admit(r.Context(), r.Header.Values(Header), func() (string, error) { return resource(r) })
		if err != nil {
			Refuse(w, err)
			return
		}
		defer end()
		next.ServeHTTP(w, r.WithContext(Enclose(p)))
	})
}

type passageKey struct{}

// Enclose returns the passage's context, which holds the passage for [From].
func Enclose(p *Passage) context.Context { return context.WithValue(p.Context(), passageKey{}, p) }

// From returns the passage of the request of ctx. Every request that [Handler] serves has one.
func From(ctx context.Context) (*Passage, bool) {
	p, ok := ctx.Value(passageKey{}).(*Passage)
	return p, ok
}
