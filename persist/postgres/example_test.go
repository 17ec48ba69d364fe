package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/postgres"
)

func Example() {
	ctx := context.Background()
	store, err := postgres.Open(ctx, os.Getenv("DATABASE_URL"), postgres.Config{Schema: "app"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	greeting := persist.Key{Kind: "greeting", ID: "en"}
	create := persist.Commit{
		ID:     "example.1",
		Writes: []persist.Write{{Key: greeting, Version: 1, Doc: []byte(`{"text":"hello"}`)}},
	}
	_, err = store.Commit(ctx, create)
	fmt.Println(err)

	_, err = store.Commit(ctx, create) // another writer was faster
	var conflict *persist.Conflict
	if errors.As(err, &conflict) {
		fmt.Println(conflict.Winners[0].Version, string(conflict.Winners[0].Doc))
	}
}

// TestExample runs the example, which has no output of its own because it needs a database.
func TestExample(t *testing.T) {
	t.Setenv("DATABASE_URL", pgtest.URL(t))
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = writer
	Example()
	os.Stdout = stdout
	require.NoError(t, writer.Close())
	output, err := io.ReadAll(reader)
	require.NoError(t, err)
	require.Equal(t, "<nil>\n1 {\"text\":\"hello\"}\n", string(output))
}
