package recipes

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/persist/memory"
)

// The samples of docs/flows.md, docs/idempotency.md and docs/leases.md.

type (
	Ask    struct{ Text string }
	Reply  struct{ Text string }
	Thread struct {
		Turns int64 `json:"turns"`
	}
	Board struct {
		Results map[string]string `json:"results"`
	}
)

var Threads = pawl.Kind[Thread]{Name: pawl.KindSession}

// newChat answers the messages of a session one at a time, in the order of their arrival, in any
// process.
func newChat(rt *pawl.Runtime) (*flow.Flow, *flow.Action[Ask, Reply], error) {
	chat, err := flow.New(rt, flow.Config{
		Kind:    "chat",
		Timeout: time.Minute, // budget of in-memory mutations
		Admit:   flow.Queue,
		Per:     flow.PerSession,
	})
	if err != nil {
		return nil, nil, err
	}
	answer := flow.Define(chat, "answer", func(ctx context.Context, c *flow.Call, in Ask) (Reply, error) {
		board := pawl.Sequencer[Board](c, "board") // in memory, ends with the call
		if _, err := board.SetStateRecord(ctx, "results", "search", "found: "+in.Text); err != nil {
			return Reply{}, err
		}
		b, err := board.State(ctx)
		if err != nil {
			return Reply{}, err
		}
		_, err = Threads.Scope(c, c.Session).IncState(ctx, "turns", 1) // persisted, fenced by the call's lease
		return Reply{b.Results["search"]}, err
	})
	return chat, answer, nil
}

func TestFlow(t *testing.T) {
	ctx := t.Context()
	rt := open(t, memory.New())
	chat, answer, err := newChat(rt)
	require.NoError(t, err)
	ids := flow.IDs{Request: "r1", Session: "s1", User: "ann"}
	reply, err := answer.Do(ctx, ids, Ask{"Hi"})
	require.NoError(t, err)
	require.Equal(t, Reply{"found: Hi"}, reply)
	require.ErrorIs(t, chat.Cancel(ctx, "r1"), pawl.ErrNotFound)
	require.NoError(t, answer.Go(ctx, ids, Ask{"Hi again"}))
	require.NoError(t, chat.Stop(ctx))
	thread, err := Threads.Scope(rt, "s1").State(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, thread.Turns)
}

type Order struct {
	Item string `json:"item"`
}

var (
	Orders   = pawl.Kind[Order]{Name: "order"}
	ErrSpent = errors.New("too few credits")
)

// createOrder takes the price, stores the order and stores the response, in one commit.
func createOrder(rt *pawl.Runtime, user string, price int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id, order := idempotency.NewKey(), Order{Item: r.FormValue("item")}
		err := pawl.Transact(r.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			account, err := Customers.Scope(tx, user).State(ctx)
			if err != nil {
				return err
			}
			if account.Credit < price {
				return ErrSpent
			}
			if _, err := Customers.Scope(tx, user).IncState(ctx, "credit", -price); err != nil {
				return err
			}
			if _, err := Orders.Scope(tx, id).SetState(ctx, order, pawl.IfAbsent()); err != nil {
				return err
			}
			return idempotency.Respond(ctx, tx, http.StatusCreated, nil, order)
		})
		switch {
		case errors.Is(err, ErrSpent):
			http.Error(w, "too few credits", http.StatusPaymentRequired)
		case err != nil:
			http.Error(w, pawl.Code(err), pawl.HTTPStatus(err))
		}
	}
}

func TestOrders(t *testing.T) {
	rt := open(t, memory.New())
	_, err := Customers.Scope(rt, "ann").IncState(t.Context(), "credit", 10)
	require.NoError(t, err)
	keys, err := idempotency.New(rt, idempotency.Config{Principal: func(*http.Request) string { return "ann" }, Require: true})
	require.NoError(t, err)
	handler := keys.Middleware(createOrder(rt, "ann", 6))
	for i, want := range []struct {
		key    string
		status int
	}{{"k1", 201}, {"k1", 201}, {"k2", 402}} {
		r := httptest.NewRequest("POST", "/orders", strings.NewReader("item=pen"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set(idempotency.Header, want.key)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		require.Equal(t, want.status, w.Code, "request %d: %s", i, w.Body)
	}
	ann, err := Customers.Scope(rt, "ann").State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, ann.Credit)
}

type Cart struct {
	Status string `json:"status"`
}

var Carts = pawl.Kind[Cart]{Name: "cart"}

// ship stands for a call to another system, which can compare the token.
func ship(context.Context, uint64) error { return nil }

// shipCart ships a cart in one process at a time.
func shipCart(ctx context.Context, rt *pawl.Runtime, id string) error {
	cart := Carts.Scope(rt, id)
	return cart.Hold(ctx, func(ctx context.Context, l *pawl.Lease) error {
		if err := ship(ctx, l.Token()); err != nil { // an outside system can check the token
			return err
		}
		_, err := cart.PatchState(ctx, pawl.Patch{"status": "shipped"}) // refused if the lease was lost
		return err
	}, pawl.LeaseFor(time.Minute), pawl.WaitForLease())
}

func TestShipCart(t *testing.T) {
	rt := open(t, memory.New())
	require.NoError(t, shipCart(t.Context(), rt, "7"))
	cart, err := Carts.Scope(rt, "7").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, "shipped", cart.Status)
}
