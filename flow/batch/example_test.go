package batch_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/pawl-go/pawl/persist/sqlite"
)

// Wallet is the account of a user.
type Wallet struct {
	Points int64 `json:"points"`
}

var Wallets = pawl.Kind[Wallet]{Name: "wallet"}

// Prompt is an item: what one call gets.
type Prompt struct {
	Text string `json:"text"`
}

// Image is an artifact: what one call returns.
type Image struct {
	File string `json:"file"`
}

// Gallery stands for the other system. It keeps one image for each key.
type Gallery struct {
	mu     sync.Mutex // protects images
	images map[string]string
}

// Draw makes an image. Repeated with the same key, it makes the same image and no second one.
func (g *Gallery) Draw(_ context.Context, key string, p Prompt) (Image, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.images[key] = p.Text
	return Image{File: p.Text + ".png"}, nil
}

// Remove removes an image, by its key. Removing an image that is not there is a success.
func (g *Gallery) Remove(_ context.Context, key string, _ *Image) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.images, key)
	return nil
}

// Len returns the number of images.
func (g *Gallery) Len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.images)
}

// newImages returns a queue of jobs that draw images. Every process that submits, cancels, reads or
// works on them has one.
func newImages(rt *pawl.Runtime, g *Gallery) (*batch.Queue[Prompt, Image], error) {
	return batch.New(rt, batch.Config[Prompt, Image]{
		Name:   "images",
		Ledger: batch.ScopeLedger(Wallets, "points"),
		Price:  func(Prompt) (int64, error) { return 5, nil },
		Make:   g.Draw,
		Remove: g.Remove,
	})
}

// openWallet returns a runtime in memory, with an account that has points.
func openWallet(ctx context.Context, account string, points int64) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{Wallets, Albums}})
	if err != nil {
		panic(err)
	}
	if _, err := Wallets.Scope(rt, account).SetState(ctx, Wallet{Points: points}); err != nil {
		panic(err)
	}
	return rt
}

// balanceOf returns the points of an account.
func balanceOf(ctx context.Context, rt *pawl.Runtime, account string) int64 {
	w, err := Wallets.Scope(rt, account).State(ctx)
	if err != nil {
		panic(err)
	}
	return w.Points
}

// await returns the progress of a job when no worker works on it any more.
func await(ctx context.Context, images *batch.Queue[Prompt, Image], id string) (last batch.Progress, err error) {
	for p, err := range images.Watch(ctx, id) {
		if err != nil {
			return last, err
		}
		last = p // a program draws its progress bar here
	}
	return last, context.Cause(ctx)
}

// A job is submitted, worked on in the background, and watched.
func Example() {
	ctx := context.Background()
	rt := openWallet(ctx, "ada", 100)
	defer rt.Close(ctx)
	images, err := newImages(rt, &Gallery{images: map[string]string{}})
	if err != nil {
		panic(err)
	}

	job := batch.Job[Prompt]{ID: "j1", Account: "ada", Items: []Prompt{{"cat"}, {"dog"}, {"owl"}}}
	for range 2 { // a request that arrives twice
		p, created, err := images.Submit(ctx, job)
		fmt.Println("created:", created, p.Status, err)
	}
	if err := images.Start(ctx); err != nil {
		panic(err)
	}
	p, err := await(ctx, images, "j1")
	fmt.Printf("%s: %d of %d, cost %d, %v\n", p.Status, p.Done, p.Items, p.Cost(), err)
	for item, err := range images.Items(ctx, "j1") {
		fmt.Println(item.Index, item.State, item.Artifact.File, err)
	}
	fmt.Println("balance:", balanceOf(ctx, rt, "ada"))
	fmt.Println("stopped:", images.Stop(ctx))
	// Output:
	// created: true queued <nil>
	// created: false queued <nil>
	// completed: 3 of 3, cost 15, <nil>
	// 0 made cat.png <nil>
	// 1 made dog.png <nil>
	// 2 made owl.png <nil>
	// balance: 85
	// stopped: <nil>
}

// A job is canceled while its second call is in progress. What the calls cost is refunded, and what
// they made is removed.
func ExampleQueue_Cancel() {
	ctx := context.Background()
	rt := openWallet(ctx, "ada", 100)
	defer rt.Close(ctx)
	gallery := &Gallery{images: map[string]string{}}
	drawing := make(chan struct{})
	images, err := batch.New(rt, batch.Config[Prompt, Image]{
		Name:   "images",
		Ledger: batch.ScopeLedger(Wallets, "points"),
		Price:  func(Prompt) (int64, error) { return 5, nil },
		Make: func(ctx context.Context, key string, p Prompt) (Image, error) {
			image, err := gallery.Draw(ctx, key, p)
			if p.Text == "dog" { // a call that takes long
				close(drawing)
				<-ctx.Done()
				return Image{}, context.Cause(ctx)
			}
			return image, err
		},
		Remove:    gallery.Remove,
		Interrupt: true, // Cancel does not wait for calls in progress
	})
	if err != nil {
		panic(err)
	}
	if err := images.Start(ctx); err != nil {
		panic(err)
	}
	defer images.Stop(ctx)
	job := batch.Job[Prompt]{ID: "j1", Account: "ada", Items: []Prompt{{"cat"}, {"dog"}, {"owl"}}}
	if _, _, err := images.Submit(ctx, job); err != nil {
		panic(err)
	}

	<-drawing
	fmt.Println("balance:", balanceOf(ctx, rt, "ada"))
	c, err := images.Cancel(ctx, "j1")
	fmt.Println(c.Answer, err)
	p, err := await(ctx, images, "j1") // the worker tears the job down
	fmt.Printf("%s: charged %d, refunded %d, %v\n", p.Status, p.Charged, p.Refunded, err)
	fmt.Println("balance:", balanceOf(ctx, rt, "ada"), "images left:", gallery.Len())
	c, err = images.Cancel(ctx, "j1")
	fmt.Println(c.Answer, err)
	// Output:
	// balance: 90
	// ACCEPTED <nil>
	// canceled: charged 10, refunded 10, <nil>
	// balance: 100 images left: 0
	// ALREADY_CANCELED <nil>
}

// Album lists the images that a user has accepted.
type Album struct {
	Files []string `json:"files"`
}

var Albums = pawl.Kind[Album]{Name: "album"}

// keep adds an image to the album of a user, in the commit that accepts the item.
func keep(ctx context.Context, tx *pawl.Tx, item batch.Item[Prompt, Image]) error {
	_, err := Albums.Scope(tx, "ada").PushState(ctx, "files", item.Artifact.File)
	return err
}

// The points of an account last for two of three items. One of them is accepted, and the rest of the
// job is canceled.
func ExampleQueue_Finalize() {
	ctx := context.Background()
	rt := openWallet(ctx, "ada", 10)
	defer rt.Close(ctx)
	gallery := &Gallery{images: map[string]string{}}
	images, err := batch.New(rt, batch.Config[Prompt, Image]{
		Name:     "images",
		Ledger:   batch.ScopeLedger(Wallets, "points"),
		Price:    func(Prompt) (int64, error) { return 5, nil },
		Make:     gallery.Draw,
		Remove:   gallery.Remove,
		Finalize: keep,
	})
	if err != nil {
		panic(err)
	}
	job := batch.Job[Prompt]{ID: "j1", Account: "ada", Items: []Prompt{{"cat"}, {"dog"}, {"owl"}}}
	if _, _, err := images.Submit(ctx, job); err != nil {
		panic(err)
	}
	if _, err := images.Once(ctx); err != nil { // in place of Start, for tests and tools
		panic(err)
	}
	p, err := images.Progress(ctx, "j1")
	fmt.Println(p.Status, p.Reason, err)

	fmt.Println("cat:", images.Finalize(ctx, "j1", 0))
	fmt.Println("owl:", images.Finalize(ctx, "j1", 2))
	album, err := Albums.Scope(rt, "ada").State(ctx)
	fmt.Println("album:", album.Files, err)

	c, err := images.Cancel(ctx, "j1")
	fmt.Printf("%s: charged %d, refunded %d, %v\n", c.Answer, c.Progress.Charged, c.Progress.Refunded, err)
	fmt.Println("balance:", balanceOf(ctx, rt, "ada"), "images left:", gallery.Len())
	// Output:
	// failed batch: account "ada" has 0 points and needs 5 <nil>
	// cat: <nil>
	// owl: batch: item 2 of job "j1" is waiting, and only an item that is made can be finalized
	// album: [cat.png] <nil>
	// CANCELED: charged 10, refunded 5, <nil>
	// balance: 5 images left: 1
}

// A job whose account has too few points goes on after a top-up.
func ExampleQueue_Retry() {
	ctx := context.Background()
	rt := openWallet(ctx, "ada", 5)
	defer rt.Close(ctx)
	images, err := newImages(rt, &Gallery{images: map[string]string{}})
	if err != nil {
		panic(err)
	}
	job := batch.Job[Prompt]{ID: "j1", Account: "ada", Items: []Prompt{{"cat"}, {"dog"}}}
	if _, _, err := images.Submit(ctx, job); err != nil {
		panic(err)
	}
	work := func() {
		if _, err := images.Once(ctx); err != nil {
			panic(err)
		}
		p, err := images.Progress(ctx, "j1")
		fmt.Printf("%s: %d of %d %v\n", p.Status, p.Done, p.Items, err)
	}
	work()
	if _, err := Wallets.Scope(rt, "ada").IncState(ctx, "points", 100); err != nil {
		panic(err)
	}
	fmt.Println("retry:", images.Retry(ctx, "j1"))
	work()
	// Output:
	// failed: 1 of 2 <nil>
	// retry: <nil>
	// completed: 2 of 2 <nil>
}

// cancelHandler cancels the job that a request names.
func cancelHandler(images *batch.Queue[Prompt, Image]) http.HandlerFunc {
	statuses := map[batch.Answer]int{
		batch.Accepted:         http.StatusAccepted, // a worker tears it down; follow Watch
		batch.NowCanceled:      http.StatusOK,       // the totals are final
		batch.AlreadyCanceled:  http.StatusOK,       // a repeated request gets the same totals
		batch.AlreadyCompleted: http.StatusConflict, // too late, and nothing is refunded
	}
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := images.Cancel(r.Context(), r.PathValue("id"))
		if err != nil { // 404 without such a job, 502 if a removal failed, 503 if the store is down
			http.Error(w, pawl.Code(err), pawl.HTTPStatus(err))
			return
		}
		w.WriteHeader(statuses[c.Answer])
		_ = json.NewEncoder(w).Encode(map[string]any{"answer": c.Answer, "final": c.Progress.Final, "refunded": c.Progress.Refunded})
	}
}

// The answers of Cancel as answers to an HTTP request.
func ExampleCancellation() {
	ctx := context.Background()
	rt := openWallet(ctx, "ada", 100)
	defer rt.Close(ctx)
	images, err := newImages(rt, &Gallery{images: map[string]string{}})
	if err != nil {
		panic(err)
	}
	if _, _, err := images.Submit(ctx, batch.Job[Prompt]{ID: "j1", Account: "ada", Items: []Prompt{{"cat"}}}); err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs/{id}/cancel", cancelHandler(images))
	for _, id := range []string{"j1", "j1", "j2"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/jobs/"+id+"/cancel", nil))
		fmt.Print(w.Code, " ", w.Body)
	}
	// Output:
	// 200 {"answer":"CANCELED","final":true,"refunded":0}
	// 200 {"answer":"ALREADY_CANCELED","final":true,"refunded":0}
	// 404 NOT_FOUND
}

// addPoints adds points to a row of the table wallet, and takes them if points is negative.
func addPoints(ctx context.Context, tx *sql.Tx, account string, points int64) error {
	result, err := tx.ExecContext(ctx, // one statement, which tests the balance
		`UPDATE wallet SET points = points + $1 WHERE id = $2 AND (points + $1 >= 0 OR $1 > 0)`, points, account)
	if err != nil {
		return err
	}
	if rows, err := result.RowsAffected(); err != nil || rows == 1 {
		return err
	}
	short := &batch.InsufficientError{Account: account, Need: -points}
	err = tx.QueryRowContext(ctx, `SELECT points FROM wallet WHERE id = $1`, account).Scan(&short.Have)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("%w: account %s", pawl.ErrNotFound, account)
	case err != nil:
		return err
	}
	return short
}

// The balances are rows of a table of the program, in the database of the store.
func ExampleNativeLedger() {
	ctx := context.Background()
	folder, err := os.MkdirTemp("", "batch")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "state.db")
	store, err := sqlite.Open(ctx, file, sqlite.Config{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	rt, err := pawl.Open(pawl.Config{Store: store})
	if err != nil {
		panic(err)
	}
	defer rt.Close(ctx)
	db, err := sql.Open(sqlite.Driver, "file:"+file)
	if err != nil {
		panic(err)
	}
	defer db.Close()
	for _, statement := range []string{
		`CREATE TABLE wallet (id TEXT PRIMARY KEY, points INTEGER NOT NULL)`,
		`INSERT INTO wallet VALUES ('ada', 12)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			panic(err)
		}
	}

	gallery := &Gallery{images: map[string]string{}}
	images, err := batch.New(rt, batch.Config[Prompt, Image]{
		Name:   "images",
		Ledger: batch.NativeLedger(addPoints),
		Price:  func(Prompt) (int64, error) { return 5, nil },
		Make:   gallery.Draw,
		Remove: gallery.Remove,
	})
	if err != nil {
		panic(err)
	}
	prompts := []Prompt{{"cat"}, {"dog"}, {"owl"}}
	_, _, err = images.Submit(ctx, batch.Job[Prompt]{ID: "j0", Account: "bob", Items: prompts})
	fmt.Println("bob:", pawl.Code(err))
	if _, _, err := images.Submit(ctx, batch.Job[Prompt]{ID: "j1", Account: "ada", Items: prompts}); err != nil {
		panic(err)
	}
	if _, err := images.Once(ctx); err != nil {
		panic(err)
	}
	var points int64
	show := func(p batch.Progress, err error) {
		row := db.QueryRowContext(ctx, `SELECT points FROM wallet WHERE id = 'ada'`)
		err = errors.Join(err, row.Scan(&points))
		fmt.Printf("%s: charged %d, refunded %d, balance %d, %v\n", p.Status, p.Charged, p.Refunded, points, err)
	}
	show(images.Progress(ctx, "j1"))
	c, err := images.Cancel(ctx, "j1")
	show(c.Progress, err)
	// Output:
	// bob: NOT_FOUND
	// failed: charged 10, refunded 0, balance 2, <nil>
	// canceled: charged 10, refunded 10, balance 12, <nil>
}
