package proc

import "aenv/native/internal/oomscore"

// shelteredScore is the oom_score_adj of the keeper and its services: when the host runs out of memory, nearly everything
// else goes first. Not -1000: a service that leaks must stay something the kernel can end.
const shelteredScore = -900

// openScore lowers the keeper's own score as far as it may. Commands have the one it was given, at most an ordinary one.
func openScore() (*oomscore.Score, error) {
	score, err := oomscore.Open()
	if err != nil {
		return nil, err
	}
	score.Children = max(score.Own, 0)
	score.Lower(shelteredScore)
	return score, nil
}
