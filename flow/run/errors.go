package run

import "fmt"

// KeyError is returned when an idempotency key was used before, with another definition or input.
// Nothing was changed. Code IDEMPOTENCY_KEY_REUSED; 422.
type KeyError struct {
	Key string
	Run string // the run that has the key
}

func (e *KeyError) Error() string {
	return fmt.Sprintf("run: key %.80q belongs to run %s with another definition or input", e.Key, e.Run)
}

// Code returns IDEMPOTENCY_KEY_REUSED.
func (e *KeyError) Code() string { return "IDEMPOTENCY_KEY_REUSED" }

// HTTPStatus returns 422.
func (e *KeyError) HTTPStatus() int { return 422 }

// FinishedError is returned for a run that is over. Nothing was changed. Code RUN_FINISHED; 409.
type FinishedError struct {
	Run    string
	Status Status
}

func (e *FinishedError) Error() string { return fmt.Sprintf("run: %s is %s", e.Run, e.Status) }

// Code returns RUN_FINISHED.
func (e *FinishedError) Code() string { return "RUN_FINISHED" }

// HTTPStatus returns 409.
func (e *FinishedError) HTTPStatus() int { return 409 }

// UnfinishedError is returned for a run that is not over. Nothing was changed. Code RUN_UNFINISHED;
// 409.
type UnfinishedError struct {
	Run    string
	Status Status
}

func (e *UnfinishedError) Error() string { return fmt.Sprintf("run: %s is still %s", e.Run, e.Status) }

// Code returns RUN_UNFINISHED.
func (e *UnfinishedError) Code() string { return "RUN_UNFINISHED" }

// HTTPStatus returns 409.
func (e *UnfinishedError) HTTPStatus() int { return 409 }

// UnknownDefinitionError is returned for a definition that is not registered, also for an empty
// name. Nothing was changed. Code UNKNOWN_DEFINITION; 404.
type UnknownDefinitionError struct{ Definition string }

func (e *UnknownDefinitionError) Error() string {
	return fmt.Sprintf("run: definition %.80q is not registered", e.Definition)
}

// Code returns UNKNOWN_DEFINITION.
func (e *UnknownDefinitionError) Code() string { return "UNKNOWN_DEFINITION" }

// HTTPStatus returns 404.
func (e *UnknownDefinitionError) HTTPStatus() int { return 404 }
