package checkpoint

// ShouldCheckpoint says whether a rank saves at this step. It depends on nothing but
// its arguments, so all ranks answer alike without talking. Step 0 is never saved:
// nothing has been learned yet. every below 1 means that the script decides.
func ShouldCheckpoint(step, every int64) bool {
	return every > 0 && step > 0 && step%every == 0
}
