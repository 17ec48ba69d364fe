// Package batch runs costly jobs item by item, and can cancel, refund and clean them up.
//
// Each item costs points and makes an expensive call. The package owns the protocol; the program
// supplies the price of an item, the call, the removal of what the call made, and the ledger with
// the balances:
//
//	images, err := batch.New(rt, batch.Config[Prompt, Image]{
//		Name:   "images",
//		Ledger: batch.ScopeLedger(Wallets, "points"),
//		Price:  func(p Prompt) (int64, error) { return 5, nil },
//		Make:   draw,   // func(ctx, key, prompt) (Image, error)
//		Remove: forget, // func(ctx, key, image) error
//	})
//	progress, created, err := images.Submit(ctx, batch.Job[Prompt]{ID: "j1", Account: "ada", Items: prompts})
//	answer, err := images.Cancel(ctx, "j1")
//
// An item is charged in the commit that marks its start. An item that fails is refunded in the
// commit that marks it failed. Cancel refunds every item that was charged and not accepted with
// Finalize, removes what the calls made, and only then says that the job is canceled. A process may
// die at any point of that: any process that repeats the operation, or works on the queue, comes to
// the same end and the same balance.
//
// A call may be made more than once for one item: its process may die before the result is stored.
// It has the same key each time, and the item is charged once.
package batch
