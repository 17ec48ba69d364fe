package soak_test

import (
	"log/slog"
	"testing"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

var quiet = slog.New(slog.DiscardHandler)
