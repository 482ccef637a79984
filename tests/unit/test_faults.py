"""Known kinds of fault of programs like this one, and what shows that we are free of each.

The list of faults is kept beside the project; the ids are its. A fault is answered by tests, by scenarios of the lab,
or by a line of the documents that says why it cannot occur here or is not ours. What is named in the docstring of a
test needs no line here.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from nodecpu.lab.run import scenario_files
from tests.support import ROOT, shared_design

TESTS = ROOT / "tests"

SHOWN = {
    "U1": "property/test_picker.py::two_threads_are_one_core_whenever_a_whole_core_is_free unit/policy/test_claims.py",
    "U3": "lab:init-container-hands-over unit/policy/test_n4c16.py",
    "U4": "unit/policy/test_n4c16.py::four_guaranteed_containers_land_on_four_nodes unit/policy/test_ledger.py",
    "U5": "unit/policy/test_allocate.py::amounts_on_one_device_add_up lab:two-results-all-or-nothing",
    "U6": "unit/dra/test_claims.py::results_of_our_driver_count_and_others_do_not",
    "U7": "unit/dra/test_claims.py::bad_amount_is_refused_by_claim_result_and_reason",
    "U8": "unit/dra/test_opaque.py::without_requests_it_is_for_all",
    "U9": "unit/policy/test_allocate.py::held_cpus_are_out_of_reach_of_other_prepares",
    "U11": "unit/policy/test_room.py::restored_books_over_smaller_pools_are_settled lab:reload-keeps-claims",
    "U18": "unit/dra/test_devices.py::cpus_held_without_a_claim_are_not_offered",
    "U20": "unit/policy/test_shared.py::grant_without_any_cpu_has_no_placement_rather_than_an_empty_one"
    " lab:last-shared-cpu-is-refused",
    "U21": "unit/enforce/test_audit.py::widening_goes_through_a_runtime_known_to_be_safe",
    "U19": "unit/test_locality.py::claimed_cpus_have_to_satisfy_strict_hints",
    "U22": "unit/preflight/test_kubelet.py::reserved_cpus_are_compared",
    "U23": "unit/policy/test_allocate.py::isolated_cpus_serve_exclusive_requests_and_nobody_else",
    "U24": "unit/test_known_faults.py::own_and_shared_cpus_are_set_again_together",
    "U25": "unit/test_known_faults.py::reserved_cpus_hold_more_than_they_have_room_for",
    "U32": "unit/policy/test_room.py::slices_leave_what_shared_containers_asked_for",
    "U38": "unit/store/test_unreadable.py::a_file_that_is_no_database_is_set_aside",
    "U40": "unit/test_known_faults.py::prepare_after_a_restart_is_a_look_into_the_books lab:restarts-move-nothing",
    "U45": "integration/test_daemon_process.py::sigterm_ends_with_0_and_removes_the_daemons_sockets",
    "U53": "unit/nri/test_connection.py::creation_past_three_quarters_of_the_time_is_refused_and_taken_back",
    "U54": "unit/nri/test_connection.py::update_inside_a_request_is_refused"
    " unit/nri/test_versions.py::unasked_updates_need_the_deadlock_fix",
    "U55": "unit/nri/test_connection.py::restarted_runtime_is_found_again_a_hundred_times",
    "U57": "unit/nri/test_versions.py::validation_is_not_subscribed",
    "U59": "unit/nri/test_plugin.py::synchronize_in_pieces_is_one_call_of_the_service",
    "U60": "unit/nri/test_connection.py::refused_registration_is_told_and_tried_again",
    "U62": "unit/test_known_faults.py::creations_are_asked_for_by_name"
    " unit/nri/test_versions.py::subscription_is_what_the_service_uses_on_every_release",
    "U64": "unit/preflight/test_runtime.py::nri_turned_off_is_told_with_what_to_set",
    "U65": "unit/policy/test_links.py::variable_counts_with_the_right_cpus_and_the_pods_reference"
    " unit/nri/test_versions.py::cdi_names_are_shown_by_new_containerd_only",
    "U66": "unit/policy/test_links.py::reference_without_injection_is_never_taken_for_a_shared_container",
    "U70": "unit/preflight/test_host.py::kernel_without_cpuset_and_no_hierarchy_at_all",
    "U73": "unit/policy/test_requests.py::container_of_some_runtime_handlers_is_left_alone",
    "U74": "unit/enforce/test_systemd.py::a_scope_gets_its_cpus_and_memory_nodes_until_it_ends"
    " unit/enforce/test_audit.py::a_foreign_change_is_counted_and_put_right",
    "U75": "unit/enforce/test_systemd.py::without_scope_or_systemd_nothing_is_set",
    "U76": "unit/nri/test_convert.py::only_the_entry_that_a_request_is_about_may_fail_it"
    " unit/enforce/test_audit.py::drift_tells_its_likely_cause",
    "U82": "integration/test_kubelet_plugin.py::kubelet_is_told_who_we_are_and_we_what_it_thinks",
    "U84": "integration/test_kubelet_plugin.py::kubelet_is_told_who_we_are_and_we_what_it_thinks",
    "U86": "integration/test_kubelet_plugin.py::removed_socket_comes_back",
    "U88": "e2e/test_package_life.py::removal_is_refused_while_a_claim_lives",
    "U90": "unit/test_known_faults.py::cpus_of_a_shared_claim_stay_until_the_last_container_is_gone"
    " unit/test_known_faults.py::prepare_and_unprepare_of_one_claim_go_one_after_the_other",
    "U95": "unit/policy/test_figures.py::limit_of_1m_does_not_throttle_a_holder_of_eight",
    "U96": "unit/policy/test_pinning_series.py"
    "::cpu_shares_come_from_the_portion_if_there_is_one_otherwise_from_all_cpus",
    "U99": "unit/test_reconcile.py::owner_of_a_claim_that_nobody_uses_is_told"
    " unit/policy/test_links.py::reference_without_injection_is_never_taken_for_a_shared_container",
    "U100": "lab:second-pod-shares-a-prepared-claim unit/policy/test_pinning_series.py",
    "U101": "integration/test_publish_versions.py::devices_are_withheld_where_one_claim_would_take_them_whole",
    "U102": "unit/dra/test_slices.py::thousand_single_cpus_fill_slices_of_128_and_of_64_with_taints",
    "U104": "integration/test_publish.py::slices_come_back_after_the_kubelet_deleted_them",
    "U106": "integration/test_publish.py::node_that_does_not_exist_is_named"
    " unit/preflight/test_nodename.py::name_is_the_first_that_is_told",
    "U107": "unit/kube/test_manifests.py::rights_are_those_that_the_lab_grants",
    "U113": "integration/test_nrt.py::object_is_made_owned_by_the_node_and_written_on_change_only",
    "U116": "forgery/test_forgery.py::attempt_ends_as_the_table_says lab:forged-variables-gain-nothing",
    "U119": "unit/test_unit_file.py::exposure_stays_low e2e/test_package_life.py::claim_is_served_within_the_sandbox",
    "U120": "unit/kube/test_manifests.py::policy_covers_every_version_and_way_of_writing_slices_and_fails_closed",
    "U121": "unit/admin/test_admin_socket.py::socket_is_for_its_owner_alone_and_goes_with_the_server"
    " integration/test_kubelet_plugin.py::sockets_are_private_and_go_at_the_end",
    "U124": "unit/test_config.py",
    "U127": "lab:on-any-machine",
    "U132": "unit/test_reconfigure.py lab:reload-keeps-claims",
    "U135": "lab:cpus-come-and-go lab:offline-cpus-show-as-health"
    " unit/dra/test_condition.py::device_is_unhealthy_when_held_cpus_are_offline",
    "U136": "property/test_topology_reader.py::lost_and_spoilt_files_leave_a_sound_topology",
    "U137": "integration/test_recorded_machines.py::core_types_of_recorded_machines unit/topology",
    "U139": "integration/test_recorded_machines.py::recorded_machine_is_read_into_a_sound_topology",
    "U140": "integration/test_recorded_machines.py::memory_only_nodes_serve_the_nearest_cpu_node",
    "U141": "unit/policy/test_wishes.py::large_machines_are_ordinary",
    "U143": "unit/test_hotplug.py::memory_that_comes_late_serves_new_containers_and_is_never_asked_for_when_gone",
    "U145": "integration/test_recorded_machines.py::packages_without_an_id_get_one_each",
    "U146": "integration/test_recorded_machines.py::groups_agree_with_lscpu",
    "U149": "unit/test_service.py::after_a_reboot_into_another_machine_claims_are_picked_anew_within_their_devices",
    "U155": "integration/test_daemon_process.py::the_watchdog_is_fed"
    " e2e/test_package_life.py::hung_daemon_is_ended_by_the_watchdog_and_the_claim_stays",
    "U157": "crash/test_crash.py e2e/test_package_life.py::upgrade_and_downgrade_move_nothing_under_a_claim",
    "U158": "e2e/test_ansible.py::second_run_and_its_check_change_nothing",
    "U160": "e2e/test_package_life.py::it_is_ready_before_kubelet_and_runtime_are_there",
    "U161": "crash/test_crash.py integration/test_recovery.py",
    "U162": "unit/test_unit_file.py::unit_is_verified_without_output",
    "U164": "e2e/test_package_life.py::upgrade_with_a_wrong_configuration_leaves_the_old_daemon_running",
    "U165": "e2e/test_package_life.py::forced_removal_and_new_installation_find_the_claim_again",
    "U166": "lab:real-processes-of-this-host unit/preflight/test_kubelet.py",
    "U168": "e2e/test_package_life.py::killed_daemon_is_started_again_whatever_killed_it soak/test_soak.py",
}

REASONS = {
    "U13": "the kubelet's Topology Manager does not align claims",
    "U16": "a virtual machine in a pod needs CPUs for its own threads",
    "U69": "crun does not update a cpuset under systemd",
    "U115": "a cluster autoscaler does not see claims",
    "U147": "/proc/cpuinfo differs between architectures",
    "U159": "SELinux denies access to sockets or files",
    "U167": "an upgrade of the distribution's Python, or pip, breaks the daemon",
}
"""How a fault that cannot occur here, or is not ours, begins in the table of docs/explanation/reliability.md."""


@cache
def grave_faults() -> tuple[str, ...]:
    """Return the ids of the faults that lose isolation or break a pod (S1, S2)."""
    text = shared_design("pitfalls.md").read_text()
    return tuple(re.findall(r"^- \*\*(U[0-9]+)\*\* \(S[12]\)", text, re.MULTILINE))


@cache
def named_in_tests() -> frozenset[str]:
    """Return the ids that stand in docstrings of tests or in scenarios."""
    texts = [path.read_text() for path in TESTS.rglob("test_*.py") if path.name != "test_faults.py"]
    texts += [file.read_text(encoding="utf-8") for file in scenario_files().values()]
    return frozenset(re.findall(r"\bU[0-9]+\b", " ".join(texts)))


def test_every_grave_fault_is_answered() -> None:
    answered = {*SHOWN, *REASONS, *named_in_tests()}
    assert [fault for fault in grave_faults() if fault not in answered] == []


def test_no_fault_is_answered_twice() -> None:
    assert not SHOWN.keys() & REASONS.keys()


@pytest.mark.parametrize("fault", REASONS)
def test_why_it_cannot_occur_or_is_not_ours_is_told_to_operators(fault: str) -> None:
    assert f"\n| {REASONS[fault]}" in (ROOT / "docs/explanation/reliability.md").read_text()


@pytest.mark.parametrize(("fault", "places"), SHOWN.items(), ids=SHOWN)
def test_what_shows_it_is_there(fault: str, places: str) -> None:
    del fault
    for place in places.split():
        if place.startswith("lab:"):
            assert place.removeprefix("lab:") in scenario_files()
            continue
        file, _, name = place.partition("::")
        path = TESTS / file
        assert path.exists(), place
        assert not name or f"def test_{name}(" in path.read_text(), place
