package server_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"

	"github.com/pawl-go/pawl/examples/chat/server"
	"github.com/pawl-go/pawl/persist/memory"
)

// A server in a program of yours, with a store of yours.
func Example() {
	ctx := context.Background()
	store := memory.New()
	defer store.Close()
	s, err := server.New(ctx, server.Config{Store: store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close(ctx)

	site := httptest.NewServer(s.Handler())
	defer site.Close()
	answer, err := site.Client().Get(site.URL + "/healthz")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	fmt.Println(answer.StatusCode, strings.TrimSpace(string(text)), err)
	// Output: 200 {"status":"ok"} <nil>
}
