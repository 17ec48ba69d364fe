package inspect_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/inspect"
	"github.com/pawl-go/pawl/persist/memory"
)

// The pages are mounted behind the program's own authentication. Runs can be canceled, and tokens are
// not shown.
func ExampleNew() {
	rt, err := pawl.Open(pawl.Config{Store: memory.New()})
	if err != nil {
		panic(err)
	}
	defer rt.Close(context.Background())
	user := func(r *http.Request) string {
		name, password, _ := r.BasicAuth()
		if password != "a secret of yours" { // in a program: your authentication
			return ""
		}
		return name
	}
	admin := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user(r) != "ada" {
				http.Error(w, "not for you", http.StatusForbidden)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	mux := http.NewServeMux()
	mux.Handle("/pawl/", admin(inspect.New(rt, inspect.Config{
		Views:   []inspect.View{inspect.Runs(run.NewEngine(rt, run.Config{}))},
		Actions: []string{inspect.ActCancel},
		Author:  user,
		Redact: func(_ pawl.Key, path pawl.Field, _ any) (any, bool) {
			return "hidden", strings.HasSuffix(string(path), "token")
		},
	})))

	if _, err := pawl.Session[pawl.Doc](rt, "s1").SetState(context.Background(), pawl.Doc{"token": "s3cr3t"}); err != nil {
		panic(err)
	}
	for _, name := range []string{"bob", "ada"} {
		r := httptest.NewRequest("GET", "/pawl/raw?kind=session&id=s1", nil)
		r.SetBasicAuth(name, "a secret of yours")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, strings.TrimSpace(w.Body.String()))
	}
	// Output:
	// 403 not for you
	// 200 {"token":"hidden"}
}
