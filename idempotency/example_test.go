package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist/memory"
)

// example returns a runtime and keys for the examples. A real program uses a persistent store.
func example() (*pawl.Runtime, *idempotency.Keys) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		log.Fatal(err)
	}
	keys, err := idempotency.New(rt, idempotency.Config{
		Principal: func(r *http.Request) string { user, _, _ := r.BasicAuth(); return user }, // in a program: the user that your authentication has verified
		Require:   true,
	})
	if err != nil {
		log.Fatal(err)
	}
	return rt, keys
}

// order sends an order under a key and prints the answer.
func order(url, key, body string) {
	r, err := http.NewRequest("POST", url+"/orders", strings.NewReader(body))
	if err != nil {
		log.Fatal(err)
	}
	r.SetBasicAuth("ann", "secret")
	r.Header.Set(idempotency.Header, key)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	if response.StatusCode >= 400 {
		text = []byte(http.StatusText(response.StatusCode))
	}
	fmt.Printf("%d %s, replayed: %q\n", response.StatusCode, text, response.Header.Get(idempotency.Replayed))
}

// An order is sent twice because its answer was lost, but placed once. A different order needs a
// different key.
func ExampleKeys_Middleware() {
	rt, keys := example()
	defer rt.Close(context.Background())
	placed := 0
	mux := http.NewServeMux()
	mux.Handle("POST /orders", keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		placed++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "order %d", placed)
	})))
	server := httptest.NewServer(mux)
	defer server.Close()

	order(server.URL, `"cart-7"`, `{"item":7}`)
	order(server.URL, `"cart-7"`, `{"item":7}`)
	order(server.URL, `"cart-7"`, `{"item":8}`)
	order(server.URL, `"cart-8"`, `{"item":8}`)
	// Output:
	// 201 order 1, replayed: ""
	// 201 order 1, replayed: "true"
	// 422 Unprocessable Entity, replayed: ""
	// 201 order 2, replayed: ""
}

type Shop struct {
	Sold int64 `json:"sold"`
}

// The sale and the response are one commit, so a crash at any point cannot sell twice.
func ExampleRespond() {
	rt, keys := example()
	defer rt.Close(context.Background())
	shops := pawl.Kind[Shop]{Name: "shop"}
	server := httptest.NewServer(keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := pawl.Transact(r.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			s, err := shops.Scope(tx, "corner").State(ctx)
			if err != nil {
				return err
			}
			if _, err := shops.Scope(tx, "corner").IncState(ctx, "sold", 1); err != nil {
				return err
			}
			return idempotency.Respond(ctx, tx, http.StatusCreated, nil, map[string]int64{"number": s.Sold + 1})
		})
		if err != nil {
			http.Error(w, pawl.Code(err), pawl.HTTPStatus(err))
		}
	})))
	defer server.Close()

	order(server.URL, "cart-7", "")
	order(server.URL, "cart-7", "")
	// Output:
	// 201 {"number":1}, replayed: ""
	// 201 {"number":1}, replayed: "true"
}

// A message is delivered twice. A final error is stored like a result.
func ExampleDo() {
	rt, keys := example()
	defer rt.Close(context.Background())
	send := func(message, to string) {
		op := idempotency.Op{Name: "welcome", Key: message, Input: to}
		receipt, replayed, err := idempotency.Do(context.Background(), keys, op, func(context.Context) (string, error) {
			if !strings.Contains(to, "@") {
				return "", pawl.NonRetryable(errors.New("not an address"))
			}
			fmt.Println("sending to", to)
			return "sent", nil
		})
		fmt.Printf("%q %t %v\n", receipt, replayed, err)
	}
	send("message-1", "ann@example.com")
	send("message-1", "ann@example.com")
	send("message-2", "bob")
	send("message-2", "bob")
	// Output:
	// sending to ann@example.com
	// "sent" false <nil>
	// "sent" true <nil>
	// "" false not an address
	// "" true not an address
}

// An agent repeats a tool call. Its change of the state and its result are one commit.
func ExampleDoTx() {
	rt, keys := example()
	defer rt.Close(context.Background())
	shops := pawl.Kind[Shop]{Name: "shop"}
	sell := func(call string) {
		op := idempotency.Op{Principal: "agent", Name: "sell", Key: call}
		number, replayed, err := idempotency.DoTx(context.Background(), keys, op, func(ctx context.Context, tx *pawl.Tx) (int64, error) {
			s, err := shops.Scope(tx, "corner").AtomicState(ctx, func(_ context.Context, s *Shop) error {
				s.Sold++
				return nil
			})
			return s.State().Sold, err
		})
		fmt.Println(number, replayed, err)
	}
	sell("call-1")
	sell("call-1")
	sell("call-2")
	// Output:
	// 1 false <nil>
	// 1 true <nil>
	// 2 false <nil>
}

// The client gives each request a key, and repeats it under that key until it gets an answer.
func ExampleTransport() {
	rt, keys := example()
	defer rt.Close(context.Background())
	tries := 0
	handler := keys.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "paid once") }))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if tries++; tries == 1 {
			panic(http.ErrAbortHandler) // the network fails
		}
		r.SetBasicAuth("ann", "secret")
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()

	client := &http.Client{Transport: &idempotency.Transport{Retry: pawl.Retry{First: 1}}}
	response, err := client.Post(server.URL+"/payments", "application/json", strings.NewReader(`{"cents":700}`))
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	fmt.Println(string(text), err, tries)
	// Output: paid once <nil> 2
}
