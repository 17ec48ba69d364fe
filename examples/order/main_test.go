package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist/memory"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// The demo runs on an SQLite file.
func Example() {
	folder, _ := os.MkdirTemp("", "order")
	defer os.RemoveAll(folder)
	if err := demo(context.Background(), os.Stdout, filepath.Join(folder, "shop.db")); err != nil {
		fmt.Println(err)
	}
	// Output:
	// webhook msg-1: 202 Accepted, status PENDING
	// webhook msg-1: 200 OK, status PENDING
	// charge: 4200 cents for order 789
	// pack: ratchet into parcel P-789
	// ship: parcel P-789
	// run: COMPLETED, parcel P-789
	// webhook msg-1: 200 OK, status COMPLETED
	// charges: 1, 4200 cents
}

const story = `webhook msg-1: 202 Accepted, status PENDING
webhook msg-1: 200 OK, status PENDING
charge: 4200 cents for order 789
pack: ratchet into parcel P-789
ship: parcel P-789
run: COMPLETED, parcel P-789
webhook msg-1: 200 OK, status COMPLETED
charges: 1, 4200 cents
`

// The demo prints the same lines on every store.
func TestStory(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		var output strings.Builder
		require.NoError(t, demo(t.Context(), &output, stores.Flag(location)))
		require.Equal(t, story, output.String())
	})
}

// A webhook without an id or an order, or with the id of another order, starts no run.
func TestRefusedWebhooks(t *testing.T) {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	require.NoError(t, err)
	defer rt.Close(context.Background())
	shop := &Shop{}
	shop.runs = run.Register(run.NewEngine(rt, run.Config{}), shop.definition())
	post := func(message, body string) int {
		r := httptest.NewRequest(http.MethodPost, "/webhooks/orders", strings.NewReader(body))
		r.Header.Set("Webhook-Id", message)
		w := httptest.NewRecorder()
		shop.webhook(w, r)
		return w.Code
	}
	require.Equal(t, 400, post("", `{"order":"1"}`))
	require.Equal(t, 400, post("m", `{`))
	require.Equal(t, 202, post("m", `{"order":"1"}`))
	require.Equal(t, 422, post("m", `{"order":"2"}`))
	n := 0
	for _, err := range shop.runs.List(t.Context(), run.Filter{}) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, 1, n)
}
