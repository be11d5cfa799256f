"""Planted faults in what members of a group were told: the checkers of groups find each of them."""

from simulation.checkers.group_offsets import broken_offsets
from simulation.checkers.groups import broken_generations
from simulation.group_history import Beat, Commit, GroupHistory, Joined, OffsetRead, Synced, Who
from simulation.history import Outcome

P = "orders-0"


def who(member: str = "a", generation: int = 1, instance: str | None = None) -> Who:
    return Who("g", member, instance, generation)


class Told(GroupHistory):
    """A history that is written by hand."""

    def joins_as(self, member: Who) -> None:
        self.joins.append(Joined(member, self.tick(), self.tick()))

    def assigns_to(self, member: Who, *partitions: str) -> None:
        self.assigns(member.group, member.generation)
        self.syncs.append(Synced(member, partitions, self.tick()))

    def sends(self, member: Who, offset: int, outcome: Outcome = Outcome.DONE) -> Commit:
        commit = self.commit(member, {P: offset})
        if outcome is not Outcome.UNKNOWN:
            self.committed(commit, outcome)
        return commit

    def reads_of(self, commit: Commit | None) -> None:
        found = None if commit is None else (commit.offsets[P], commit.id)
        self.reads.append(OffsetRead("g", P, found, self.tick(), self.tick()))


def test_a_group_that_behaves_is_not_complained_about() -> None:
    told = Told()
    for generation in (1, 2):
        told.joins_as(who(generation=generation))
        told.assigns_to(who(generation=generation), P)
        told.reads_of(told.sends(who(generation=generation), generation))
    assert [*broken_generations(told), *broken_offsets(told)] == []


def test_two_owners_in_one_generation_are_found() -> None:
    told = Told()
    told.assigns_to(who("a"), P)
    told.assigns_to(who("b"), P)
    assert "belongs to a and to b" in next(broken_generations(told))


def test_two_lives_of_a_static_member_are_one_owner() -> None:
    told = Told()
    told.assigns_to(who("a1", instance="a"), P)
    told.assigns_to(who("a2", instance="a"), P)
    assert list(broken_generations(told)) == []


def test_a_commit_of_an_old_generation_is_found() -> None:
    told = Told()
    told.assigns_to(who("a", 1), P)
    told.assigns_to(who("b", 2), P)
    told.sends(who("a", 1), 5)
    assert "though b of g in generation 2" in next(broken_generations(told))


def test_a_commit_before_the_assignment_is_found() -> None:
    told = Told()
    told.joins_as(who())
    told.sends(who(), 5)
    told.assigns_to(who(), P)
    assert "before anything was assigned" in next(broken_generations(told))


def test_a_commit_in_a_generation_that_was_never_assigned_is_as_in_kafka() -> None:
    told = Told()
    told.joins_as(who())
    told.sends(who(), 5)
    assert list(broken_generations(told)) == []


def test_a_commit_of_a_replaced_static_member_is_found() -> None:
    told = Told()
    for member in ("a1", "a2"):
        told.joins_as(who(member, instance="a"))
        told.assigns_to(who(member, instance="a"), P)
    told.sends(who("a1", instance="a"), 5)
    assert "a2 had replaced it" in next(broken_generations(told))


def test_a_lost_offset_is_found() -> None:
    told = Told()
    told.sends(who(), 5)
    told.reads_of(None)
    assert "has no offset" in next(broken_offsets(told))


def test_an_offset_that_moved_back_is_found() -> None:
    told = Told()
    first = told.sends(who(), 5)
    told.sends(who(), 7)
    told.reads_of(first)
    assert "to 7 is lost" in next(broken_offsets(told))


def test_a_commit_without_an_answer_may_come_late_but_not_after_a_later_generation() -> None:
    told = Told()
    unanswered = told.sends(who(), 5, Outcome.UNKNOWN)
    told.sends(who(), 7)
    told.reads_of(unanswered)
    assert list(broken_offsets(told)) == []
    told.sends(who("b", 2), 9)
    told.reads_of(unanswered)
    assert "to 9 is lost" in next(broken_offsets(told))


def test_a_refused_commit_that_shows_is_found() -> None:
    told = Told()
    told.reads_of(told.sends(who(), 5, Outcome.NOT_DONE))
    assert "which was refused" in next(broken_offsets(told))


def test_a_partition_with_an_owner_of_either_protocol_is_found() -> None:
    """A member of the classic protocol may commit what it was not given, as in Kafka."""
    for given in ((P,), ()):
        told = Told()
        told.assigns_to(who("a"), *given)
        holder = Who("g", "b", None, 2, is_consumer=True)
        told.hold(holder, P)
        told.sends(who("a"), 5)
        told.beats.append(Beat("b", told.tick()))
        found = list(broken_generations(told))
        assert ["though b of g in generation 2 had orders-0" in each for each in found] == [
            True for _ in given
        ]


def test_a_commit_before_the_assignment_does_not_count_what_was_given_before() -> None:
    """In a group of both protocols Kafka accepts it; found by seed 367."""
    told = Told()
    told.assigns_to(who("a", 1), P)
    told.hold(Who("g", "b", None, 2, is_consumer=True), P)
    told.joins.append(Joined(who("a", 3), told.tick(), told.tick()))
    told.sends(who("a", 3), 0)
    told.beats.append(Beat("b", told.tick()))
    assert list(broken_generations(told)) == []


def test_where_both_protocols_are_used_each_member_has_an_epoch_of_its_own() -> None:
    told = Told()
    told.assigns_to(who("a", 1), P)
    told.assigns_to(who("b", 2), "orders-1")
    told.sends(who("a", 1), 5)
    assert list(broken_generations(told))
    told.beats.append(Beat("c", told.tick()))
    assert list(broken_generations(told)) == []
