package sse_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/sse"
)

type Import struct {
	Done, Of int
	Token    string
}

// A page shows the progress of an import. View hides the token, and the stream ends with the
// import.
func ExampleServe() {
	rt, err := pawl.Open(pawl.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close(context.Background())

	mux := http.NewServeMux()
	mux.HandleFunc("/imports/{id}", func(w http.ResponseWriter, r *http.Request) {
		job := pawl.Memory[Import](rt, r.PathValue("id"))
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

	if _, err := pawl.Memory[Import](rt, "7").SetState(context.Background(), Import{Done: 10, Of: 10, Token: "s3cr3t"}); err != nil {
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
