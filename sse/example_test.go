package sse_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"iter"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/sse"
	"github.com/pawl-go/pawl/stream"
)

type Import struct {
	Done, Of int
	Token    string
}

// A page shows the progress of an import. View hides the token, and the stream ends with the
// import.
func ExampleServe() {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(context.Background())

	mux := http.NewServeMux()
	mux.HandleFunc("/imports/{id}", func(w http.ResponseWriter, r *http.Request) {
		job := pawl.Request[Import](rt, r.PathValue("id"))
		err := sse.Serve(w, r, job,
			sse.View(func(s pawl.Snapshot[Import]) any {
				return map[string]int{"done": s.ReadOnly().Done, "of": s.ReadOnly().Of}
			}),
			sse.Until(func(s Import) bool { return s.Done == s.Of }))
		if err != nil {
			log.Print(err)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	if _, err := pawl.Request[Import](rt, "7").SetState(context.Background(), Import{Done: 10, Of: 10, Token: "s3cr3t"}); err != nil {
		log.Fatal(err)
	}
	response, err := http.Get(server.URL + "/imports/7")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	stream, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(stream))
	// Output:
	// retry: 3000
	//
	// id: 1
	// data: {"done":10,"of":10}
}

type Said struct {
	Text string `json:"text"`
}

// A page shows a conversation and follows it. If the connection breaks, EventSource sends the id of
// the last event, and goes on after it.
func ExampleServeEvents() {
	ctx := context.Background()
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(ctx)
	messages, err := stream.New(rt, stream.Config{Events: []stream.Type{stream.Of[Said]("said")}})
	if err != nil {
		log.Fatal(err)
	}

	mux := http.NewServeMux()
	mux.HandleFunc("/threads/{id}", func(w http.ResponseWriter, r *http.Request) {
		err := sse.ServeEvents(w, r, func(ctx context.Context, after string) iter.Seq2[sse.Event, error] {
			return func(yield func(sse.Event, error) bool) {
				for e, err := range messages.WatchAfter(ctx, r.PathValue("id"), after) {
					if !yield(sse.Event{ID: e.ID, Name: e.Type, Data: e.Data}, err) {
						return
					}
				}
			}
		})
		if err != nil {
			log.Print(err)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	if _, err := messages.Append(ctx, "7", stream.Any, Said{"Hi"}, Said{"Hello"}); err != nil {
		log.Fatal(err)
	}
	response, err := http.Get(server.URL + "/threads/7")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for n := 0; n < 2 && lines.Scan(); { // the response goes on with new events
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			fmt.Println(data)
			n++
		}
	}
	// Output:
	// {"text":"Hi"}
	// {"text":"Hello"}
}
