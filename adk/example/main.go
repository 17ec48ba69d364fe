// Example runs an agent of ADK in two processes on one store. Its tool spends the credits of a user,
// which the sessions of both processes share. No credit is spent twice, and none is lost.
//
//	cd adk/example && go run .
//	cd adk/example && go run . -store credits.db
//
// The model is a fake, so no key is needed. Read agent.go first: the tool.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/adk"
	"github.com/pawl-go/pawl/persist/sqlite"
	"google.golang.org/adk/v2/agent"
	"google.golang.org/adk/v2/session"
	"google.golang.org/genai"
)

const (
	appName = "shop"
	userID  = "ann"
	credits = 30
	turns   = 8 // of each process

	// processEnv names the environment variable with the name of a second process.
	processEnv = "PAWL_ADK_EXAMPLE"
)

func main() {
	file := flag.String("store", "", "an SQLite file; empty: a temporary one")
	flag.Parse()
	ctx := context.Background()
	err := error(nil)
	if name := os.Getenv(processEnv); name != "" {
		err = buy(ctx, os.Stdout, *file, name)
	} else {
		err = demo(ctx, os.Stdout, *file)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// open returns the session service on a file: these lines make an agent of ADK use Pawl.
func open(ctx context.Context, file string) (sessions *adk.Service, close func(), err error) {
	store, err := sqlite.Open(ctx, file, sqlite.Config{})
	if err != nil {
		return nil, nil, err
	}
	rt, err := pawl.Open(pawl.Config{Store: store, Kinds: adk.Kinds()})
	if err != nil {
		return nil, nil, errors.Join(err, store.Close())
	}
	sessions, err = adk.New(rt, adk.Config{})
	return sessions, func() { _ = errors.Join(rt.Close(ctx), store.Close()) }, err
}

// demo starts two processes, and compares what they bought with the credits that are left.
func demo(ctx context.Context, out io.Writer, file string) error {
	folder, err := os.MkdirTemp("", "adk")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if file == "" {
		file = filepath.Join(folder, "credits.db")
	}
	sessions, closeAll, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer closeAll()
	// The state of a user is shared by all sessions of the user.
	first, err := sessions.Create(ctx, &session.CreateRequest{AppName: appName, UserID: userID, State: map[string]any{"user:credits": credits, "user:orders": 0}})
	if err != nil {
		return err
	}

	self, err := os.Executable()
	if err != nil {
		return err
	}
	lines := make(chan string)
	var readers sync.WaitGroup
	var children []*exec.Cmd
	for _, name := range []string{"process 1", "process 2"} {
		child := exec.CommandContext(ctx, self, "-store", file)
		child.Env, child.Stderr = append(os.Environ(), processEnv+"="+name), os.Stderr
		said, err := child.StdoutPipe()
		if err != nil {
			return err
		}
		if err := child.Start(); err != nil {
			return err
		}
		children = append(children, child)
		readers.Go(func() {
			for s := bufio.NewScanner(said); s.Scan(); {
				lines <- s.Text()
			}
		})
	}
	go func() { readers.Wait(); close(lines) }()
	bought := 0
	for line := range lines {
		fmt.Fprintln(out, line)
		if strings.HasSuffix(line, answerBought) {
			bought++
		}
	}
	for _, child := range children {
		err = errors.Join(err, child.Wait())
	}
	if err != nil {
		return err
	}

	last, err := sessions.Get(ctx, &session.GetRequest{AppName: appName, UserID: userID, SessionID: first.Session.ID()})
	if err != nil {
		return err
	}
	left, err := last.Session.State().Get("user:credits")
	if err != nil {
		return err
	}
	orders, err := last.Session.State().Get("user:orders")
	fmt.Fprintf(out, "%d credits, %d bought for %d each, %v left, %v orders\n", credits, bought, price, left, orders)
	return err
}

// buy is the second process: it runs turns of the agent in a session of its own.
func buy(ctx context.Context, out io.Writer, file, name string) error {
	sessions, closeAll, err := open(ctx, file)
	if err != nil {
		return err
	}
	defer closeAll()
	r, err := newRunner(sessions)
	if err != nil {
		return err
	}
	created, err := sessions.Create(ctx, &session.CreateRequest{AppName: appName, UserID: userID})
	if err != nil {
		return err
	}
	for turn := 0; turn < turns; {
		answer := ""
		for event, runErr := range r.Run(ctx, userID, created.Session.ID(), genai.NewContentFromText("Buy one.", "user"), agent.RunConfig{}) {
			if err = runErr; err != nil {
				break
			}
			if event.IsFinalResponse() && event.Content != nil {
				answer = event.Content.Parts[0].Text
			}
		}
		switch {
		case errors.Is(err, adk.ErrStale): // the other process was faster: run the turn again
			fmt.Fprintf(out, "%s: again, the credits have changed\n", name)
			continue
		case err != nil:
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", name, answer)
		turn++
	}
	return nil
}
